"""Backoff with jitter, one sentence a change, an end only where waiting cannot help."""

from __future__ import annotations

import datetime as dt
import io
import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from shared.problems import InvalidConfiguration, RevokedToken, StorageUnavailable
from shared.schemas import Wait
from tests.helpers.http_servers import Answer, Request, http_server, transport
from worker.client import CoordinatorClient
from worker.loop import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, Backoff, Refused
from worker.main import run
from worker.progress import Reporter
from worker.settings import WorkerSettings

PROBLEM = "application/problem+json"


class _Faults:
    """An action that fails with these errors in turn, then answers 42."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def __call__(self) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return 42


def _backoff(sleep: Callable[[float], None], stream: io.StringIO | None = None) -> Backoff:
    now = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    reporter = Reporter(stream or io.StringIO(), lambda: now)
    return Backoff("http://coordinator", reporter, random.Random(7), sleep)


def test_delays_grow_to_their_limit_and_are_spread() -> None:
    delays: list[float] = []
    backoff = _backoff(delays.append)
    assert backoff.retry(_Faults(*[httpx.ReadTimeout("")] * 200)) == 42
    limits = [min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**number) for number in range(200)]
    assert all(0 <= delay <= limit for delay, limit in zip(delays, limits, strict=True))
    late = delays[10:]
    assert min(late) < 3 < 27 < max(late)  # full jitter: uniform from 0 to 30 s
    backoff.retry(_Faults(httpx.ReadTimeout("")))
    assert delays[-1] <= FIRST_DELAY_SECONDS  # a success starts anew


def test_the_sentence_is_said_once_a_change() -> None:
    stream = io.StringIO()
    busy, slow = StorageUnavailable("the disk is full"), httpx.ReadTimeout("")
    _backoff(lambda _: None, stream).retry(_Faults(busy, busy, slow, slow, busy))
    lines = stream.getvalue().splitlines()
    assert [("disk is full" in line, "in time" in line) for line in lines] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def never_wait(seconds: float) -> None:
    raise AssertionError(f"waits {seconds} s")


def test_what_waiting_cannot_mend_ends_it() -> None:
    with pytest.raises(Refused, match="has revoked this client's token"):
        _backoff(never_wait).retry(_Faults(RevokedToken("gone")))
    with pytest.raises(InvalidConfiguration, match="no such data"):
        _backoff(never_wait).retry(_Faults(InvalidConfiguration("no such data")))


def test_a_configuration_that_the_coordinator_refuses_is_waited_out() -> None:
    answers = [
        httpx.Response(
            422, json=InvalidConfiguration("no such thing.").as_json(), headers={"Content-Type": PROBLEM}
        ),
        httpx.Response(200, json={"kind": "wait", "reason": "2 of 3 trainers are ready"}),
    ]
    stream, delays = io.StringIO(), list[float]()
    network = transport(lambda _: answers.pop(0))
    with CoordinatorClient("http://coordinator", transport=network) as coordinator:
        backoff = _backoff(delays.append, stream)
        assert backoff.retry(lambda: coordinator.work(0)) == Wait(reason="2 of 3 trainers are ready")
    assert len(delays) == 1
    assert "does not accept the request: no such thing. Trying again." in stream.getvalue()


def test_another_protocol_ends_the_start_with_both_versions(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        body = (
            b'{"code": "incompatible-version", "status": 409, '
            b'"detail": "the worker speaks protocol 1, this coordinator protocol 2"}'
        )
        return Answer(409, body, {"Content-Type": "application/problem+json"})

    stream = io.StringIO()
    with http_server(answer) as url:
        settings = WorkerSettings(url=url, join_token="a-join-token", state=tmp_path / "state")
        assert run(settings, stream=stream) == 3
    assert "the worker speaks protocol 1, this coordinator protocol 2" in stream.getvalue()
