"""Bodies of more than a megabyte, which pass the HTTP parser by."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from server.certificates import make_self_signed
from server.web.large_bodies import LARGE_BYTES
from tests.helpers.live_coordinator import ADMIN, Live, content_digest, live, sha256
from tests.helpers.raw_http import Connection, head

Opener = Callable[..., Live]
BODY = random.Random(1).randbytes(3 * LARGE_BYTES + 12_345)


@pytest.fixture
def opened(database_url: str, tmp_path: Path) -> Iterator[Opener]:
    """Starts one coordinator with the settings that it is given."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(live(database_url, tmp_path / "data", **settings))


def begin(body: bytes, token: str = ADMIN, **headers: Any) -> bytes:
    """The headers of a PUT of ``body``."""
    return head(
        "PUT",
        f"/api/v1/blobs/{sha256(body)}",
        token,
        content_type="application/octet-stream",
        content_digest=content_digest(body),
        content_length=len(body),
        **headers,
    )


def stored(at: Live, body: bytes) -> bool:
    path = at.coordinator.blobs.path(sha256(body))
    return path.is_file() and path.read_bytes() == body


def left_behind(at: Live) -> list[Path]:
    return list((at.coordinator.blobs.folder / "incoming").iterdir())


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_requests_behind_a_large_body_are_answered_in_turn(opened: Opener, tmp_path: Path, tls: bool) -> None:
    if tls:
        certificate = tmp_path / "own.pem"
        make_self_signed(certificate, ["localhost"])
        at = opened(tls_certificate=certificate, tls_key=certificate)
    else:
        at = opened()
    sizes = (LARGE_BYTES, LARGE_BYTES + 1, 2 * LARGE_BYTES, 2 * LARGE_BYTES + 1, len(BODY))
    bodies = [BODY[:size] for size in sizes]
    sent = b"".join(begin(body) + body + head("GET", "/healthz") for body in bodies)
    packets = random.Random(2)
    with Connection(at.url, tls=tls) as connection:
        while sent:
            size = packets.choice((1, 100, 70_000, 400_000, 3_000_000))
            connection.send(sent[:size])
            sent = sent[size:]
        assert [connection.answer()[0] for _ in range(2 * len(bodies))] == [204, 200] * len(bodies)
    assert all(stored(at, body) for body in bodies)
    assert left_behind(at) == []


def test_in_chunks_or_after_a_pause_it_comes_as_well(opened: Opener) -> None:
    at = opened()
    with Connection(at.url) as connection:
        connection.send(begin(BODY, expect="100-continue")).answer()
        assert connection.send(BODY).answer()[0] == 204
        other = BODY[1:]
        chunked = begin(other).replace(
            f"content-length: {len(other)}".encode(), b"transfer-encoding: chunked"
        )
        assert chunked != begin(other)
        connection.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(other), other))
        assert connection.answer()[0] == 204
    assert stored(at, BODY)
    assert stored(at, other)


@pytest.mark.long
def test_who_sends_slowly_is_in_time_and_who_stops_is_not(opened: Opener) -> None:
    at = opened(stall_seconds=3.0)
    slow = BODY[: LARGE_BYTES + 400_000]
    with Connection(at.url) as connection:
        connection.send(begin(slow))
        for start in range(0, len(slow), 100_000):
            connection.send(slow[start : start + 100_000])
            time.sleep(0.4)
        assert connection.answer()[0] == 204, "a piece was full only after more than three seconds"
    with Connection(at.url) as connection:
        connection.send(begin(BODY) + BODY[: 2 * LARGE_BYTES])
        status, problem = connection.answer()
        assert (status, problem["code"]) == (408, "request-timeout")
        assert connection.closed_after() < 5
    at.wait_for(lambda: not left_behind(at))
    assert stored(at, slow)
    assert not stored(at, BODY)


def test_who_is_refused_early_may_send_the_rest_and_go_on(opened: Opener) -> None:
    at = opened()
    with Connection(at.url) as connection:
        connection.send(begin(BODY, "nobody") + BODY[: LARGE_BYTES + 5])
        assert connection.answer()[0] == 401
        connection.send(BODY[LARGE_BYTES + 5 :] + begin(BODY) + BODY)
        assert connection.answer()[0] == 204
    assert stored(at, BODY)


def test_a_connection_that_breaks_leaves_nothing(opened: Opener) -> None:
    at = opened()
    with Connection(at.url) as connection:
        connection.send(begin(BODY) + BODY[:-1])
        at.wait_for(lambda: left_behind(at))
    at.wait_for(lambda: not left_behind(at))
    assert not stored(at, BODY)


def test_a_damaged_body_is_refused(opened: Opener) -> None:
    at = opened()
    with Connection(at.url) as connection:
        connection.send(begin(BODY) + BODY[:-1] + bytes([BODY[-1] ^ 1]))
        status, problem = connection.answer()
        assert (status, problem["code"]) == (422, "digest-mismatch")
        assert connection.send(begin(BODY) + BODY).answer()[0] == 204
    assert stored(at, BODY)
