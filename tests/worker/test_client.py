"""The client class over real sockets, or over a function where only the translation matters."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import httpx
import pytest

from shared import problems
from shared.schemas import Enrol, Registration, UpdateReport, Wait
from shared.wire.digests import parse_content_digest
from tests.helpers.http_servers import Answer, Request, http_server, transport
from worker.answers import UnexpectedAnswer
from worker.client import CoordinatorClient, load_trust

BLOB = bytes(range(256)) * 20_000  # 5 MB: several chunks
DIGEST = hashlib.sha256(BLOB).hexdigest()
LONGEST = len(BLOB) + 1000
REPORT = UpdateReport(attempt=2, steps=7, examples=100, loss=0.5, seconds=1.25)


def answering(response: httpx.Response) -> CoordinatorClient:
    return CoordinatorClient("http://coordinator", transport=transport(lambda _: response))


def problem(kind: type[problems.Problem], **more: object) -> httpx.Response:
    body = kind("what was wrong", hint="what to do", tensor="fc.weight").as_json() | more
    return httpx.Response(
        kind.status, content=json.dumps(body), headers={"Content-Type": "application/problem+json"}
    )


@pytest.mark.parametrize("kind", problems.catalogue().values(), ids=lambda kind: kind.code)
def test_every_problem_comes_back_as_its_own_class(kind: type[problems.Problem]) -> None:
    with answering(problem(kind)) as coordinator, pytest.raises(kind) as caught:
        coordinator.work(0)
    assert type(caught.value) is kind
    assert (caught.value.detail, caught.value.hint) == ("what was wrong", "what to do")
    assert caught.value.extra == {"tensor": "fc.weight"}


def test_a_code_from_the_future_is_judged_by_its_status() -> None:
    answer = problem(problems.UpdateLate, code="update-too-purple")
    with answering(answer) as coordinator, pytest.raises(problems.Conflict) as caught:
        coordinator.work(0)
    assert type(caught.value) is problems.Conflict


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (httpx.Response(404, html="<h1>Not found</h1>"), "status 404, text/html"),
        (httpx.Response(502, text="Bad gateway"), "status 502, text/plain"),
        (httpx.Response(301, headers={"Location": "https://elsewhere/"}), "status 301, no content type"),
        (httpx.Response(200, json={"kind": "dance", "run": "demo"}), "not an assignment"),
        (httpx.Response(200, html="<h1>Welcome</h1>"), "not an assignment"),
        (
            httpx.Response(409, text="[1]", headers={"Content-Type": "application/problem+json"}),
            "malformed problem document",
        ),
    ],
)
def test_what_is_no_coordinators_answer_is_told_apart(response: httpx.Response, what: str) -> None:
    with answering(response) as coordinator, pytest.raises(UnexpectedAnswer, match=what):
        coordinator.work(0)


def test_work_is_an_assignment_or_to_wait_with_the_reason() -> None:
    def answer(request: Request) -> Answer:
        assert request.path == "/prefix/api/v1/work?wait=2.5"
        assert request.headers["authorization"] == "Bearer secret"
        if not seen:
            seen.append(request)
            return Answer(body=b'{"kind": "wait", "reason": "2 of 3 clients are here"}')
        return Answer(body=b'{"kind": "enrol", "run": "demo"}')

    seen: list[Request] = []
    with http_server(answer) as url, CoordinatorClient(f"{url}/prefix", token="secret") as coordinator:
        assert coordinator.work(2.5) == Wait(reason="2 of 3 clients are here")
        assert coordinator.work(2.5) == Enrol(run="demo")


def test_registration_uses_the_join_code_and_later_calls_the_token() -> None:
    def answer(request: Request) -> Answer:
        tokens.append(request.headers["authorization"])
        if request.method == "DELETE":
            return Answer(204)
        return Answer(201, b'{"client": "north", "token": "a-t0ken-of-the-site"}')

    tokens: list[str] = []
    with http_server(answer) as url, CoordinatorClient(url) as coordinator:
        credential = coordinator.register("join-code", Registration(name="north"))
        coordinator.authenticate(credential.token)
        coordinator.leave("demo")
    assert (credential.client, tokens) == ("north", ["Bearer join-code", "Bearer a-t0ken-of-the-site"])


def test_no_log_record_holds_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        http_server(lambda _: Answer(204)) as url,
        CoordinatorClient(url, token="s3cr3t-t0ken") as coordinator,
    ):
        coordinator.leave("demo")
    assert caplog.records  # httpx did log
    assert "s3cr3t-t0ken" not in caplog.text


# ---------------------------------------------------------------- weights


def _ranges(request: Request) -> Answer:
    start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    if start >= len(BLOB):
        return Answer(416, b"{}", {"Content-Type": "application/json"})
    return Answer(206 if start else 200, BLOB[start:])


def test_a_download_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        ranges.append(request.headers.get("range"))
        reply = _ranges(request)
        reply.cut = 2_000_000 if len(ranges) == 1 else None
        return reply

    ranges: list[str | None] = []
    path, part = tmp_path / DIGEST, tmp_path / f"{DIGEST}.part"
    with http_server(answer) as url, CoordinatorClient(url) as coordinator:
        with pytest.raises(httpx.RemoteProtocolError):
            coordinator.download(DIGEST, path, LONGEST)
        have = part.stat().st_size
        assert 0 < have <= 2_000_000
        assert not path.exists()
        assert coordinator.download(DIGEST, path, LONGEST) == len(BLOB) - have
    assert ranges == [None, f"bytes={have}-"]
    assert path.read_bytes() == BLOB
    assert not part.exists()


def test_a_part_that_is_whole_needs_no_bytes(tmp_path: Path) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(BLOB)
    with http_server(_ranges) as url, CoordinatorClient(url) as coordinator:
        assert coordinator.download(DIGEST, tmp_path / DIGEST, LONGEST) == 0
    assert (tmp_path / DIGEST).read_bytes() == BLOB


def test_a_server_without_ranges_sends_the_whole_again(tmp_path: Path) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(BLOB[:1000])
    with http_server(lambda _: Answer(body=BLOB)) as url, CoordinatorClient(url) as coordinator:
        assert coordinator.download(DIGEST, tmp_path / DIGEST, LONGEST) == len(BLOB)
    assert (tmp_path / DIGEST).read_bytes() == BLOB


@pytest.mark.parametrize("part", [None, b"damaged" * 100])
def test_bytes_of_another_digest_are_deleted_and_refused(tmp_path: Path, part: bytes | None) -> None:
    wrong = BLOB[:-1] + b"x" if part is None else BLOB
    if part is not None:
        (tmp_path / f"{DIGEST}.part").write_bytes(part)

    def answer(request: Request) -> Answer:
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        return Answer(206 if start else 200, wrong[start:])

    refused = pytest.raises(problems.DigestMismatch, match=DIGEST)
    with http_server(answer) as url, CoordinatorClient(url) as coordinator, refused:
        coordinator.download(DIGEST, tmp_path / DIGEST, LONGEST)
    assert list(tmp_path.iterdir()) == []


def test_an_update_goes_out_with_length_digest_and_numbers(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        requests.append(request)
        receipt = {"run": "demo", "round": 3, "attempt": 2, "client": "north", "digest": DIGEST}
        return Answer(
            body=json.dumps(
                receipt | {"bytes": len(BLOB), "received_at": "2026-11-28T00:00:00Z"},
            ).encode()
        )

    requests: list[Request] = []
    path = tmp_path / "update"
    path.write_bytes(BLOB)
    with http_server(answer) as url, CoordinatorClient(url) as coordinator:
        assert coordinator.upload("demo", 3, REPORT, path, DIGEST).bytes == len(BLOB)
    request = requests[0]
    assert request.body == BLOB
    assert request.headers["content-length"] == str(len(BLOB))
    assert "transfer-encoding" not in request.headers
    assert parse_content_digest(request.headers["content-digest"]) == DIGEST
    assert request.headers["content-type"] == "application/vnd.safetensors"
    expected = "attempt=2&steps=7&examples=100&loss=0.5&seconds=1.25"
    assert request.path == f"/api/v1/runs/demo/rounds/3/update?{expected}"


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("not a certificate")
    with pytest.raises(problems.InvalidConfiguration, match=r"ca\.pem cannot be read as certificates"):
        load_trust(path)
    assert load_trust(None) is True
