"""A coordinator that means ill, or is none: it gets no memory, no disk and no terminal of a site's."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from feddisco.admin import AdminClient, connect
from feddisco.settings import ConsoleSettings
from shared.faults import Doing, Fault, FaultCode
from shared.problems import InvalidConfiguration, Problem, TooLarge
from shared.schemas import JoinTokenRequest, Progress, Registration
from tests.helpers.http_servers import Answer, Request, http_server
from tests.helpers.proxies import pour
from worker.answers import LONG_BYTES, SHORT_BYTES, UnexpectedAnswer
from worker.diagnose import diagnose
from worker.faults import describe_fault

DIGEST = hashlib.sha256(b"").hexdigest()
JSON = {"Content-Type": "application/json"}
PROBLEM = {"Content-Type": "application/problem+json"}
PIECE = b"10000\r\n" + b" " * 2**16 + b"\r\n"
"""A chunk of a body that gives its length by chunk."""
IN_SOCKETS = 16 * 2**20
"""What may lie in the buffers of both ends."""
ROOM = 32 * 2**20
"""Bytes that an answer of a megabyte may cost while it is read."""

CALLS: dict[str, Callable[[AdminClient], object]] = {
    "register": lambda client: client.register("code", Registration(name="north")),
    "runs": lambda client: client.runs(),
    "run": lambda client: client.run("demo"),
    "rounds": lambda client: client.rounds("demo"),
    "clients": lambda client: client.clients(),
    "work": lambda client: client.work(0),
    "progress": lambda client: client.progress("demo", 1, Progress(attempt=1)),
    "leave": lambda client: client.leave("demo"),
    "invite": lambda client: client.invite(JoinTokenRequest()),
}
SHORT = ("register", "progress", "leave", "invite")


@contextmanager
def _little_memory(room: int = ROOM) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < room
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A few kilobytes that stand for twice the room."""
    made = gzip.compress(bytes(2 * ROOM))
    assert len(made) < 100_000
    return made


@pytest.mark.parametrize("status", [200, 503])
def test_a_compressed_answer_is_not_opened(bomb: bytes, status: int) -> None:
    def answer(request: Request) -> Answer:
        assert request.headers["accept-encoding"] == "identity"
        return Answer(status, bomb, (JSON if status == 200 else PROBLEM) | {"Content-Encoding": "gzip"})

    words = "compressed (gzip), which was not asked for"
    with http_server(answer) as url, AdminClient(url) as client, _little_memory():
        for ask in CALLS.values():
            with pytest.raises(UnexpectedAnswer, match=re.escape(words)) as caught:
                ask(client)
            assert words in diagnose(caught.value, url).sentence


def test_a_compressed_download_is_not_opened(bomb: bytes, tmp_path: Path) -> None:
    refused = pytest.raises(UnexpectedAnswer, match="compressed")
    headers = {"Content-Encoding": "gzip"}
    with http_server(lambda _: Answer(200, bomb, headers)) as url, AdminClient(url) as client, refused:
        client.download(DIGEST, tmp_path / "model", 2**30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [JSON, PROBLEM])
def test_an_answer_without_end_is_read_to_its_limit_only(kind: dict[str, str]) -> None:
    status = b"200 OK" if kind is JSON else b"409 Conflict"
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
    start = head % (status, kind["Content-Type"].encode())
    with pour(start, PIECE, 2**14) as (url, poured), AdminClient(url) as client, _little_memory():
        for call in SHORT:
            with pytest.raises(UnexpectedAnswer, match=r"longer than the 1\.0 MB"):
                CALLS[call](client)
            assert poured[-1] < SHORT_BYTES + IN_SOCKETS


@pytest.mark.parametrize("call", ["runs", "work"])  # work may bring the keys of all members of a secure round
def test_a_long_answer_without_end_is_read_to_its_limit_only(call: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    too_long = pytest.raises(UnexpectedAnswer, match=r"longer than the 33\.6 MB")
    with pour(head, PIECE, 2**14) as (url, poured), AdminClient(url) as client, too_long:
        CALLS[call](client)
    assert poured[-1] < LONG_BYTES + IN_SOCKETS


def test_headers_without_end_are_not_kept() -> None:
    head, header = b"HTTP/1.1 200 OK\r\n", b"X-Word: " + b"x" * 2**13 + b"\r\n"
    broken = pytest.raises(httpx.RemoteProtocolError)
    with pour(head, header, 2**14) as (url, poured), AdminClient(url) as client, _little_memory(), broken:
        client.runs()
    assert poured[-1] < IN_SOCKETS


@pytest.mark.parametrize("headers", [JSON, PROBLEM])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_that_is_nested_without_end_is_refused(opening: bytes, headers: dict[str, str]) -> None:
    body = opening * (900_000 // len(opening))
    refused = pytest.raises(UnexpectedAnswer)
    status = 200 if headers is JSON else 409
    with http_server(lambda _: Answer(status, body, headers)) as url, AdminClient(url) as client, refused:
        client.work(0)


def test_json_of_another_kind_is_refused_by_every_call() -> None:
    bodies = [b"", b"null", b"[[]]", b'"run"', b"\xff\xfe", b'{"kind": {"a": 1}}', b"1" * 100_000, b"1e999"]
    now = [b""]
    with http_server(lambda _: Answer(200, now[0], JSON)) as url, AdminClient(url) as client:
        for ask in CALLS.values():
            for now[0] in bodies:
                with pytest.raises(UnexpectedAnswer):
                    ask(client)


STRANGE: list[dict[str, Any]] = [
    {"self": 1},
    {"detail": {"a": []}},
    {"hint": 7},
    {"code": ["x"]},
    {"status": {}},
]


@pytest.mark.parametrize("extra", STRANGE)
def test_a_strange_problem_document_is_a_refusal_or_no_answer(extra: dict[str, Any]) -> None:
    body = json.dumps({"code": "conflict", "detail": "d"} | extra).encode()
    refused = pytest.raises((Problem, UnexpectedAnswer))
    with http_server(lambda _: Answer(409, body, PROBLEM)) as url, AdminClient(url) as client, refused:
        client.work(0)


# ---------------------------------------------------------------- downloads


def test_a_file_larger_than_the_run_can_have_is_not_begun(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**40
    with pour(head, bytes(2**16), 2**14) as (url, poured), AdminClient(url) as client:
        with pytest.raises(TooLarge, match=r"1\.1 TB or more; this run's have at most 1\.0 MB") as caught:
            client.download(DIGEST, tmp_path / "model", 2**20)
        assert poured[-1] < IN_SOCKETS
    assert list(tmp_path.iterdir()) == []
    assert describe_fault(caught.value, Doing.WORKING).told == Fault(FaultCode.FILE_TOO_LARGE)


@pytest.mark.parametrize("have", [0, 2**19])
def test_a_file_that_does_not_end_is_stopped_and_removed(tmp_path: Path, have: int) -> None:
    (tmp_path / "model.part").write_bytes(bytes(have))
    status = b"206 Partial Content" if have else b"200 OK"
    head = b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    with pour(head, PIECE, 2**14) as (url, poured), AdminClient(url) as client:
        with pytest.raises(TooLarge):
            client.download(DIGEST, tmp_path / "model", 2**20)
        assert poured[-1] < IN_SOCKETS
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the console and tokens


def test_the_console_says_one_sentence(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("an-admin-token-of-some-length")
    answer = Answer(200, gzip.compress(b"[]"), JSON | {"Content-Encoding": "gzip"})
    refused = pytest.raises(InvalidConfiguration, match="is not a coordinator")
    with http_server(lambda _: answer) as url:
        settings = ConsoleSettings(url=url, admin_token_file=token)
        with refused, connect(settings) as client:
            client.runs()


@pytest.mark.parametrize("wrong", ["t\u00f6ken-of-a-site", "two lines\nof text", "", "a\ttab-0123456789"])
def test_a_text_that_is_no_token_is_not_sent(wrong: str) -> None:
    with pytest.raises(InvalidConfiguration, match="is no token"):
        AdminClient("http://localhost", token=wrong)


def test_a_token_that_the_coordinator_invents_is_no_header_of_its_choice() -> None:
    body = json.dumps({"client": "north", "token": "x\r\nHost: elsewhere"}).encode()
    refused = pytest.raises(UnexpectedAnswer, match="not a Credential")
    with http_server(lambda _: Answer(201, body, JSON)) as url, AdminClient(url) as client, refused:
        client.register("code", Registration(name="north"))
