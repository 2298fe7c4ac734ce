"""What answers in between is named as such: in the site's log, and on the page where it costs an update."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from shared.faults import Fault, FaultCode
from tests.helpers.http_servers import Answer
from tests.helpers.live_coordinator import Live
from tests.helpers.proxies import Cut, proxy
from tests.helpers.worker_crew import create, worker
from worker import loop
from worker.answers import UnexpectedAnswer
from worker.client import CoordinatorClient
from worker.diagnose import diagnose
from worker.poll_wait import PollWait

HTML = {"Content-Type": "text/html; charset=utf-8"}
TOKEN = "a-token-of-the-site"
PAGE = Answer(200, b"<html><h1>Welcome to the guest network</h1></html>", HTML)


def _is_upload(method: str, path: str) -> bool:
    return method == "PUT" and "/update" in path


def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONGEST_DELAY_SECONDS", 0.05)


# ---------------------------------------------------------------- an update that does not come through


@pytest.mark.parametrize("status", [413, 403])
def test_a_proxy_that_refuses_the_updates_size_is_on_the_page(
    at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def refuse_large(_method: str, _path: str, length: int) -> Answer | None:
        return Answer(status, b"<h1>no</h1>", HTML) if length > 2000 else None

    _hurry(monkeypatch)
    create(at, min_clients=1, rounds=1, max_attempts=1, weighting={"kind": "sizes"})
    with proxy(at.url, refuse_large) as url:
        member = worker(at, tmp_path, "site", url=url)
        at.wait_for(lambda: at.run()["status"] == "paused")
        row = at.admin.get("/runs/demo/rounds").json()[0]["ledger"][0]
        at.admin.post("/runs/demo/stop", json={})
        assert member.join() == 4
    (size,) = re.findall(r"refuses bodies of (\S+ kB)", row["reason"])
    sentence = f"A proxy on the way from the site to the coordinator refuses bodies of {size} ({status})."
    assert (row["status"], row["reason"]) == ("failed", sentence)
    assert f"no update (body-refused): {sentence}" in member.log
    assert "is not a coordinator" not in member.log


def test_an_upload_that_is_reset_each_time_is_on_the_page(
    at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_uploads(method: str, path: str, _length: int) -> Cut | None:
        return Cut() if _is_upload(method, path) else None

    _hurry(monkeypatch)
    create(at, min_clients=1, rounds=1, max_attempts=1, weighting={"kind": "sizes"})
    with proxy(at.url, cut_uploads) as url:
        member = worker(at, tmp_path, "site", url=url)
        at.wait_for(lambda: at.run()["status"] == "paused")
        row = at.admin.get("/runs/demo/rounds").json()[0]["ledger"][0]
        at.admin.post("/runs/demo/stop", json={})
        assert member.join() == 4
    told = Fault(FaultCode.UPLOAD_CUT, counts={"bytes": 4321}).sentence.split("4.3 kB")
    assert (row["reason"].startswith(told[0]), row["reason"].endswith(told[1])) == (True, True)
    assert "did not arrive" in member.log


def test_an_upload_that_is_reset_now_and_then_arrives(at: Live, tmp_path: Path) -> None:
    def cut_some(method: str, path: str, _length: int) -> Cut | None:
        uploads.append(path) if _is_upload(method, path) else None
        return Cut() if _is_upload(method, path) and len(uploads) <= 2 else None

    uploads: list[str] = []
    create(at, min_clients=1, rounds=1, max_attempts=1, weighting={"kind": "sizes"})
    with proxy(at.url, cut_some) as url:
        assert worker(at, tmp_path, "site", url=url).join() == 0
    assert len(uploads) == 3
    assert at.run()["status"] == "completed"


# ---------------------------------------------------------------- a poll that is cut


@pytest.mark.long
def test_a_proxy_that_cuts_idle_requests_shortens_the_wait_by_itself(at: Live, tmp_path: Path) -> None:
    create(at, min_clients=2, rounds=1, weighting={"kind": "sizes"})
    with proxy(at.url, idle_seconds=3.2) as url:  # longer than any other request takes
        member = worker(at, tmp_path, "site", url=url, wait_seconds=30.0)
        at.wait_for(lambda: "--wait-seconds" in member.log)
        other = worker(at, tmp_path, "other")
        assert [member.join(), other.join()] == [0, 0]
    shorter = "cuts requests that wait for 3 s (status 504). From now on this worker asks for work every 2 s"
    assert member.log.count(shorter) == 1
    assert "--wait-seconds 2 does so from the start" in member.log
    assert "does not" not in member.log  # the coordinator is blamed for nothing


def _cut(status: int = 504) -> UnexpectedAnswer:
    return UnexpectedAnswer(status, "text/html")


def test_two_cuts_after_the_same_time_are_a_rule() -> None:
    wait = PollWait(30.0)
    assert wait.is_cut(_cut(), 5.1)
    assert wait.seconds == 0.0  # asked at once: is the coordinator there?
    assert wait.note_answer(0.01) == ""
    assert wait.seconds == 30.0
    assert wait.is_cut(httpx.RemoteProtocolError("cut"), 5.0)
    assert "wait for 5 s (RemoteProtocolError)" in wait.note_answer(0.01)
    assert wait.seconds == 3.0
    assert wait.note_answer(3.0) == ""


def test_a_connection_that_dies_silently_halves_the_wait() -> None:
    wait = PollWait(30.0)
    for _ in range(2):
        assert wait.is_cut(httpx.ReadTimeout("nothing came"), 45.0)
        said = wait.note_answer(0.01)
    assert (wait.seconds, "every 15 s" in said) == (15.0, True)


def _does_not_answer_at_once(wait: PollWait) -> None:
    assert not wait.is_cut(httpx.ReadTimeout("frozen"), 15.0)


def _answers_after_longer(wait: PollWait) -> None:
    wait.note_answer(0.01)
    wait.note_answer(29.0)


def _is_cut_after_another_time(wait: PollWait) -> None:
    wait.note_answer(0.01)
    assert wait.is_cut(_cut(), 20.0)
    wait.note_answer(0.01)


def _is_cut_at_once(wait: PollWait) -> None:
    wait.note_answer(0.01)
    assert not wait.is_cut(_cut(502), 0.1)


def _is_refused(wait: PollWait) -> None:
    wait.note_answer(0.01)
    assert not wait.is_cut(_cut(404), 5.0)


@pytest.mark.parametrize(
    "between",
    [
        _does_not_answer_at_once,
        _answers_after_longer,
        _is_cut_after_another_time,
        _is_cut_at_once,
        _is_refused,
    ],
)
def test_a_coordinator_that_dies_is_no_rule(between: Callable[[PollWait], None]) -> None:
    wait = PollWait(30.0)
    assert wait.is_cut(_cut(), 5.0)
    between(wait)
    assert wait.is_cut(_cut(), 5.0)
    assert wait.note_answer(0.01) == ""
    assert wait.seconds == 30.0


# ---------------------------------------------------------------- what else answers


JSON = {"Content-Type": "application/json"}
LOGIN = {"Location": "https://login.hospital.example/?to=x"}
TLS = {"Location": "https://127.0.0.1/api/v1/work"}
ANSWERS = [
    (PAGE, "A web page answers at {url}, not a coordinator (status 200, text/html"),
    (Answer(302, b"", LOGIN), "redirects to login.hospital.example"),
    (Answer(301, b"", TLS), "another address (https://127.0.0.1)"),
    (Answer(407, b"<h1>407</h1>", HTML), "HTTPS_PROXY=http://NAME:PASSWORD@proxy.example:3128"),
    (Answer(511, b"<h1>Log in</h1>", HTML), "a login page of this network"),
    (Answer(403, b"<h1>Blocked</h1>", HTML), "refuses this request (status 403, text/html): a proxy, a"),
    (Answer(502, b"<h1>Bad Gateway</h1>", HTML), "A proxy answers at {url} (status 502, text/html)"),
    (Answer(503, b"{}", JSON), "A proxy answers at {url} (status 503"),
    (Answer(404, b"nothing"), "is not a coordinator (status 404"),
    (Answer(200, b"OK", {"Content-Type": "\x1b[31mtext"}), "is not a coordinator"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS)
def test_who_answers_is_named(answer: Answer, words: str) -> None:
    with proxy("http://nowhere", lambda *_: answer) as url, CoordinatorClient(url, token=TOKEN) as client:
        for ask in (lambda: client.work(0), client.runs, lambda: client.leave("demo")):
            with pytest.raises(UnexpectedAnswer) as caught:
                ask()
            assert words.format(url=url) in diagnose(caught.value, url).sentence


def test_a_web_proxy_that_asks_for_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy("http://nowhere", lambda *_: Answer(407, b"", HTML)) as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.setenv("HTTP_PROXY", url)
        for address in ("https://coordinator.invalid", "http://coordinator.invalid"):
            refused = pytest.raises((httpx.ProxyError, UnexpectedAnswer))
            with CoordinatorClient(address, insecure=True) as client, refused as caught:
                client.work(0)
            sentence = diagnose(caught.value, address).sentence
            assert "a web proxy asks for a name and a password (407)" in sentence


@pytest.mark.long
def test_a_coordinator_that_asks_to_wait_is_waited_for(at: Live, tmp_path: Path) -> None:
    """429 costs no attempt, whatever it answers."""
    asked: list[str] = []

    def ask_to_wait(method: str, path: str, _length: int) -> Answer | None:
        if path.startswith("/api/v1/clients") or asked.count(path) >= 2:
            return None
        asked.append(path)
        body = b'{"code": "too-many-requests", "detail": "north has 3 uploads open already"}'
        return Answer(429, body, {"Content-Type": "application/problem+json", "Retry-After": "1"})

    create(at, min_clients=1, rounds=1, max_attempts=1, weighting={"kind": "sizes"})
    with proxy(at.url, ask_to_wait) as url:
        member = worker(at, tmp_path, "site", url=url)
        assert member.join() == 0
    assert "asks this worker to wait: north has 3 uploads open already" in member.log
    assert at.run()["status"] == "completed"
    assert any("/update" in path for path in asked)
