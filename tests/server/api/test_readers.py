"""Who reads what: every address that answers GET, as anybody, a client, a viewer and the operator.

The numbers and texts of one client are planted, and looked for in all that the others are given. The
addresses are taken from the application, so that a new one is covered by being there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from server.app import create_app
from tests.helpers.live_coordinator import CLASSES, TASK, Live, ManualClient, enrolled, file_of, live

VIEWER = "viewer-token-of-the-tests"
OPEN = {"/healthz", "/readyz", "/openapi.json", "/sign-in"}
"""What anybody reads: none of it is about runs or clients."""

ONLY_CLIENTS = {"/api/v1/work", "/api/v1/runs/{run}/rounds/{n}/receipt"}
BLOB = "/api/v1/blobs/{sha256}"
ONLY_ADMIN = {"/api/v1/clients", "/api/v1/join-tokens", "/api/v1/users", "/api/v1/audit", BLOB}

REASON = "Jane Doe 1961-04-02 is not a number"
DECLINED = "the disk of bravo burns"
PLANTED_TEXTS = (REASON, DECLINED, "device-of-bravo")
"""What client bravo wrote, and its machine."""


@dataclass
class Story:
    """Three trainers; ``bravo`` is the one whose rows nobody else's token may show."""

    at: Live
    alpha: ManualClient
    bravo: ManualClient
    planted: set[str] = field(default_factory=set)

    def get(self, token: str | None, path: str) -> httpx.Response:
        """A stream is read for a moment: what it has to say of the past comes at once."""
        http = self.at.http(token)
        if not path.endswith("/events"):
            return http.get(self.at.url + path)
        with http.stream("GET", self.at.url + path, timeout=httpx.Timeout(10, read=0.4)) as answer:
            pieces: list[bytes] = []
            with suppress(httpx.ReadTimeout):
                for piece in answer.iter_bytes():
                    pieces.append(piece)
            return httpx.Response(answer.status_code, content=b"".join(pieces), request=answer.request)

    def found_in(self, text: str) -> set[str]:
        """Whole numbers and texts: digits of a time or of another number are none of these."""
        return {
            value for value in self.planted if re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text)
        }


def token_of(client: ManualClient) -> str:
    return client.http.headers["Authorization"].removeprefix("Bearer ")


def numbers_and_texts(document: Any) -> Iterator[str]:
    """Scalars as JSON writes them that say something: not a flag, not a small count, not a status."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name != "last_seen_at":  # another one a moment later
                yield from numbers_and_texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from numbers_and_texts(value)
    elif isinstance(document, float) or (isinstance(document, int) and abs(document) > 999):
        if document not in (0.0, 1.0):
            yield json.dumps(document)
    elif isinstance(document, str) and len(document) > 14:
        yield document


def rows_of(client: str, document: Any) -> Iterator[Any]:
    """Every object in the document that is about the client."""
    if isinstance(document, dict):
        if document.get("client") == client:
            yield document
        else:
            for value in document.values():
                yield from rows_of(client, value)
    elif isinstance(document, list):
        for value in document:
            yield from rows_of(client, value)


def train(site: ManualClient, run: str, examples: int, loss: float, seconds: float, value: float) -> None:
    numbers = {"examples": examples, "loss": loss, "seconds": seconds, "steps": examples // 7}
    answer = site.upload(run, 1, file_of(value), **numbers)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def story(database_url: str, tmp_path: Path) -> Iterator[Story]:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as at:
        yield tell(at)


def tell(at: Live) -> Story:
    """A run that completed a round and was then paused by a failure of bravo, one that it declined."""
    at.create(min_clients=3, quorum=3, rounds=2, max_attempts=1, participants=["alpha", "bravo", "charlie"])
    alpha, bravo, charlie = (at.site(name) for name in ("alpha", "bravo", "charlie"))
    assert alpha.enrol("demo", 5003).status_code == 200
    assert bravo.enrol("demo", 7919, device="device-of-bravo", left_out={"broken": 4243}).status_code == 200
    assert charlie.enrol("demo", 6007).status_code == 200
    for site, discrepancy in ((alpha, 0.25), (bravo, 0.318309886), (charlie, 0.5)):
        assert site.submit("demo", discrepancy).status_code == 204
    for site in (alpha, bravo, charlie):
        assert site.until("train")["run"] == "demo"
    assert bravo.upload("demo", 1, file_of(3.0)[:-1], examples=7919).status_code == 422
    train(alpha, "demo", 5003, 0.75, 11.5, 1.0)
    train(bravo, "demo", 7919, 0.577215664, 271.828183, 3.0)
    train(charlie, "demo", 6007, 0.875, 12.5, 2.0)
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    scores = {"loss": 1.41421356, "accuracy": 0.1732050808, "examples": 6173}
    per_category = {"cat": 0.2236067977}
    for site, more in ((alpha, {}), (bravo, {"per_category": per_category})):
        put = site.http.put("/runs/demo/rounds/1/metrics", json={**scores, **more})
        assert put.status_code == 204, put.text
        scores = {"loss": 1.6180339, "accuracy": 0.2645751311, "examples": 7027}
    for site in (alpha, bravo, charlie):
        site.until("train")
    beat = {"attempt": 1, "step": 1618, "steps": 3141, "loss": 2.718281828}
    assert bravo.http.post("/runs/demo/rounds/2/progress", json=beat).json()["proceed"]
    failure = {"attempt": 1, "code": "planted", "reason": REASON}
    for site in (bravo, charlie):
        body = failure if site is bravo else failure | {"reason": "no memory"}
        assert site.http.post("/runs/demo/rounds/2/failure", json=body).status_code == 204
    assert alpha.upload("demo", 2, file_of(1.0), examples=5003).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "paused")
    at.create("other", min_clients=3)
    bravo.until("enrol")
    assert bravo.http.post("/runs/other/decline", json={"reason": DECLINED}).status_code == 204

    story = Story(at, alpha, bravo)
    known = [
        at.admin.get(path).json()
        for path in ("/runs/demo", "/runs/demo/rounds", "/runs/demo/evaluations", "/runs/other")
    ]
    mine = {text for row in rows_of("alpha", known) for text in numbers_and_texts(row)}
    story.planted |= {text for row in rows_of("bravo", known) for text in numbers_and_texts(row)} - mine
    story.planted |= {text for event in at.events(None) for text in events_of(event, "bravo")} - mine
    return story


def events_of(event: dict[str, Any], client: str) -> Iterator[str]:
    if event["client"] == client:
        yield from numbers_and_texts(event["detail"])


def get_addresses(story: Story) -> dict[str, str]:
    """By route, an address that exists."""
    update = next(row["update"] for row in round_one(story)["ledger"] if row["client"] == "bravo")
    given = {"run": "demo", "n": "1", "round": "1", "sha256": update, "client": "bravo", "action": "stop"}
    given |= {"chart": "accuracy", "kind": "csv", "name": "vera"}
    addresses = {}
    for context in iter_route_contexts(create_app(story.at.coordinator).routes):
        methods = context.methods or set()
        if "GET" in methods and context.path is not None:
            addresses[context.path] = context.path.format(**given)
    return addresses


def round_one(story: Story) -> dict[str, Any]:
    found: dict[str, Any] = story.at.admin.get("/runs/demo/rounds/1").json()
    return found


def variants(path: str) -> list[str]:
    """The address, and what may be asked of it beside."""
    more = {
        "/runs/demo": ["?rounds-before=3", "?log-before=9999"],
        "/api/v1/runs/demo": [],
        "/api/v1/runs/demo/rounds/1": ["?attempt=1"],
        "/runs/demo/rounds/1": ["?attempt=1"],
    }
    second = [path.replace("/rounds/1", "/rounds/2")] if "/rounds/1" in path else []
    other = [path.replace("demo", "other")] if path.count("/") <= 4 and "demo" in path else []
    return [path, *(path + query for query in more.get(path, [])), *second, *other]


@pytest.mark.long
def test_no_reader_learns_of_others_what_is_not_its_own(story: Story) -> None:
    assert len(story.planted) > 15, story.planted
    assert all(any(text in value for value in story.planted) for text in PLANTED_TEXTS)
    addresses = get_addresses(story)
    assert {"/", "/runs/{run}", "/metrics", "/api/v1/runs/{run}/events", "/docs"} <= set(addresses)
    shown: dict[str, str] = {"viewer": "", "alpha": ""}
    tokens = {None: None, "alpha": token_of(story.alpha), "viewer": VIEWER}
    for route, path in addresses.items():
        for address in variants(path):
            for reader, token in tokens.items():
                answer = story.get(token, address)
                where = f"{reader} at {address}: {answer.status_code}"
                assert answer.status_code < 500, where
                if reader == "viewer":
                    shown["viewer"] += answer.text
                    if answer.is_success:
                        assert route not in ONLY_CLIENTS | ONLY_ADMIN, where
                    continue
                told = answer.text.replace(addresses[BLOB].rpartition("/")[2], "")  # it was asked for
                assert story.found_in(told) == set(), where
                if reader is None:
                    assert answer.status_code == 401 or route in OPEN, where
                else:
                    assert "bravo" not in answer.text, where
                    shown["alpha"] += answer.text
    missed = story.planted - story.found_in(shown["viewer"])
    assert missed == set(), "what is looked for is there to be found"
    for own in ("5003", "0.75", "11.5", "0.25", "0.1732050808"):
        assert own in shown["alpha"], own


def test_a_client_reads_sums(story: Story) -> None:
    http = story.alpha.http
    run = http.get("/runs/demo").json()
    assert [row["client"] for row in run["enrolments"]] == ["alpha"]
    assert run["sums"]["examples"] == 5003 + 7919 + 6007
    assert run["taken_indexes"] == [0, 1, 2]
    assert run["reason"] == "round 2 was abandoned in attempt 1"
    assert run["waiting_for"] == "paused: round 2 was abandoned in attempt 1"
    anyone = {"trainers": "anyone", "evaluators": "anyone"}
    assert run["config"] == {**story.at.run()["config"], "participants": anyone}
    (row,) = http.get("/runs/demo/rounds/1").json()["ledger"]
    assert row == next(row for row in round_one(story)["ledger"] if row["client"] == "alpha")
    first, second = http.get("/runs/demo/rounds").json()
    sums = first["sums"]
    assert (sums["clients"], sums["arrived"], sums["included"], sums["examples"]) == (3, 3, 3, 18929)
    assert sums["loss"] == pytest.approx((5003 * 0.75 + 7919 * 0.577215664 + 6007 * 0.875) / 18929)
    assert (second["status"], second["reason"]) == ("abandoned", None)
    assert [found["examples"] for found in http.get("/runs/demo/evaluations").json()] == [6173]
    assert http.get("/runs/demo/rounds/1/receipt").json()["row"] == row
    assert http.get(f"{story.at.url}/metrics").json()["code"] == "forbidden"
    member = {"task": TASK, "examples": 5, "classes": CLASSES, "index": 0}
    assert http.post("/runs/other/enrolments", json=member).status_code == 200
    refused = story.at.site("delta").enrol("other", 5, index=0)
    assert (refused.status_code, refused.json()["code"]) == (409, "index-taken")
    assert "alpha" not in refused.text, "a refusal names no other client"


def test_a_sum_over_two_is_not_told(database_url: str, tmp_path: Path) -> None:
    """Who knows its own part of it would know the other's."""
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as at:
        at.create(min_clients=2, rounds=1)
        sites = enrolled(at, (5003, 7919), (0.25, 0.5))
        assert sites[0].http.get("/runs/demo").json()["sums"]["examples"] is None
        for site in sites:
            site.until("train")
            assert site.upload("demo", 1, file_of(1.0), examples=site.examples).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        view = sites[0].http.get("/runs/demo/rounds/1").json()
        assert (view["sums"]["included"], view["sums"]["examples"]) == (2, None)
        for row in (*view["ledger"], sites[0].http.get("/runs/demo/rounds/1/receipt").json()["row"]):
            assert (row["examples"], row["discrepancy"]) == (5003, 0.25)
            shares = ("size_share", "discrepancy_share", "score", "weight", "size_weight")
            assert [row[name] for name in shares] == [None] * 5
        whole = at.http(VIEWER).get("/runs/demo/rounds/1").json()["ledger"]
        assert [row["weight"] is not None for row in whole] == [True, True]


def test_heartbeats_reach_their_own_client_and_viewers(story: Story) -> None:
    at = story.at
    at.create("third", min_clients=2, weighting={"kind": "sizes"})
    for site in (story.alpha, story.bravo):
        assert site.enrol("third", 10).status_code == 200
    for site in (story.alpha, story.bravo):
        site.until("train")
    heard: dict[str, list[str]] = {"alpha": [], "viewer": []}

    def listen(reader: str, token: str) -> None:
        timeout = httpx.Timeout(10, read=0.5)
        stream = at.http(token).stream("GET", "/runs/third/events", timeout=timeout)
        with suppress(httpx.ReadTimeout), stream as answer:
            for line in answer.iter_lines():
                heard[reader].append(line)

    threads = [
        threading.Thread(target=partial(listen, *pair))
        for pair in (("alpha", token_of(story.alpha)), ("viewer", VIEWER))
    ]
    for thread in threads:
        thread.start()
    at.wait_for(lambda: at.coordinator.hub.open_streams == 2)
    for site, step in ((story.bravo, 2718), (story.alpha, 3141)):
        beat = {"attempt": 1, "step": step, "steps": 9999}
        assert site.http.post("/runs/third/rounds/1/progress", json=beat).json()["proceed"]
    for thread in threads:
        thread.join()
    assert "3141" in "".join(heard["alpha"])
    assert "2718" not in "".join(heard["alpha"])
    assert all(step in "".join(heard["viewer"]) for step in ("3141", "2718"))
