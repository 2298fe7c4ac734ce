"""What a coordinator refuses to take: each refusal has its code, is in the event log, and changes nothing."""

from __future__ import annotations

import datetime as dt
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from server.clock import utc_now
from tests.helpers.clocks import clock_by
from tests.helpers.live_coordinator import (
    ADMIN,
    Live,
    ManualClient,
    content_digest,
    enrolled,
    file_of,
    live,
    sha256,
    tensors,
    upload_headers,
)


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        opened.create(min_clients=2, rounds=2, weighting={"kind": "sizes"}, round_deadline_seconds=600)
        yield opened


def changed(**changes: Any) -> bytes:
    """An update with some tensors replaced, or left out when None."""
    made = {**tensors(1.0), **changes}
    return save({name: value for name, value in made.items() if value is not None})


def with_value(value: float) -> bytes:
    weight = np.ones((4, 3), np.float32)
    weight[2, 1] = value
    return changed(**{"layer.weight": weight})


ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: file_of(1.0)[:-3], "truncated"),
    "trailing": (lambda: file_of(1.0) + b"!", "not-safetensors"),
    "pickle": (lambda: pickle.dumps({"layer.weight": [1.0]}), "not-safetensors"),
    "empty": (lambda: b"", "truncated"),
    "nan": (lambda: with_value(np.nan), "not-finite"),
    "infinity": (lambda: with_value(np.inf), "not-finite"),
    "unknown": (lambda: changed(intruder=np.zeros(2, np.float32)), "unknown-tensor"),
    "missing": (lambda: changed(scale=None), "missing-tensor"),
    "shape": (lambda: changed(**{"layer.bias": np.zeros(5, np.float32)}), "wrong-shape"),
    "dtype": (lambda: changed(**{"layer.bias": np.zeros(4, np.float64)}), "wrong-dtype"),
    "large": (lambda: b"\0" * 3_000_000, "too-large"),
}


def lasting(run: dict[str, Any]) -> dict[str, Any]:
    """A run without what changes by itself: the sentence, and when clients were last seen."""
    enrolments = [{**row, "last_seen_at": None} for row in run["enrolments"]]
    return {**run, "waiting_for": None, "enrolments": enrolments}


def refused(at: Live, kind: str) -> list[tuple[str, str]]:
    return [(event["client"], event["detail"]["code"]) for event in at.events() if event["kind"] == kind]


def stored_updates(at: Live) -> set[str]:
    return {row["update"] for row in at.admin.get("/runs/demo/rounds/1").json()["ledger"]}


def test_bad_bytes_are_refused_recorded_and_change_nothing(at: Live) -> None:
    site, other = enrolled(at, (10, 10))
    site.until("train")
    before = at.run()
    for name, (body, code) in ATTACKS.items():
        answer = site.upload("demo", 1, body())
        assert 400 <= answer.status_code < 500, name
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == code, (name, answer.text)
    assert refused(at, "update_invalid") == [("site-0", code) for _, code in ATTACKS.values()]
    assert stored_updates(at) == {None}
    assert list((at.coordinator.blobs.folder / "incoming").iterdir()) == [], "nothing is left on the disk"
    assert lasting(at.run()) == lasting(before)
    assert site.upload("demo", 1, file_of(1.0)).status_code == 200, "the client may still deliver"
    other.until("train")
    assert other.upload("demo", 1, file_of(3.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)


def test_the_refusal_names_the_tensor(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    answer = site.upload("demo", 1, with_value(np.nan)).json()
    assert "layer.weight" in answer["detail"]
    assert answer["hint"]


def test_a_client_weighs_by_its_enrolled_size_and_not_by_what_it_tells_later(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    site.until("train")
    answer = site.upload("demo", 1, file_of(1.0), examples=1000)
    assert answer.status_code == 422
    assert "1000 examples" in answer.json()["detail"]
    assert "enrolled with 10" in answer.json()["detail"]
    assert site.upload("demo", 1, file_of(1.0), examples=10).status_code == 200


def test_headers_that_are_missing_or_lie(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    body = file_of(1.0)
    kind = {"Content-Type": "application/vnd.safetensors"}
    cases: list[tuple[dict[str, str], int, str]] = [
        (kind, 422, "invalid-request"),
        ({**kind, "Content-Digest": "nonsense"}, 422, "invalid-request"),
        (upload_headers(b"other bytes"), 422, "digest-mismatch"),
        (upload_headers(body, **{"Content-Type": "application/json"}), 415, "unsupported-media-type"),
    ]
    for headers, status, code in cases:
        answer = site.upload("demo", 1, body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert [code for _, code in refused(at, "update_invalid")] == [case[2] for case in cases]


def test_a_connection_that_breaks_leaves_nothing(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    body = file_of(1.0)
    token = site.http.headers["Authorization"]
    host, port = at.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"PUT /api/v1/runs/demo/rounds/1/update?attempt=1&steps=1&examples=10 HTTP/1.1\r\nHost: x\r\n"
            + f"Authorization: {token}\r\nContent-Type: application/octet-stream\r\n".encode()
            + f"Content-Digest: {content_digest(body)}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body[:100]
        )
    at.wait_for(lambda: refused(at, "update_invalid") == [("site-0", "truncated")])
    assert list((at.coordinator.blobs.folder / "incoming").iterdir()) == []
    assert stored_updates(at) == {None}


def test_an_upload_may_be_repeated_but_not_replaced(at: Live) -> None:
    site, other = enrolled(at, (10, 10))
    first = site.upload("demo", 1, file_of(1.0))
    assert first.status_code == 200
    again = site.upload("demo", 1, file_of(1.0))
    assert again.json() == first.json()
    replaced = site.upload("demo", 1, file_of(2.0))
    assert (replaced.status_code, replaced.json()["code"]) == (409, "update-already-received")
    assert other.upload("demo", 1, file_of(3.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    assert site.upload("demo", 1, file_of(1.0)).status_code == 200, "the answer may have been lost"
    late = site.upload("demo", 1, file_of(9.0))
    assert late.status_code == 409
    assert at.run()["model"] == sha256(file_of(2.0)), "the mean of 1 and 3"
    assert {code for _, code in refused(at, "update_refused")} == {
        replaced.json()["code"],
        late.json()["code"],
    }


def test_uninvited_stale_and_late_updates_are_conflicts(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    stranger = at.site("stranger")
    cases = [
        (stranger.upload("demo", 1, file_of(1.0)), "not-a-participant"),
        (site.upload("demo", 7, file_of(1.0)), "update-stale"),
        (site.upload("demo", 1, file_of(1.0), attempt=2), "update-stale"),
    ]
    at.admin.post("/runs/demo/stop")
    cases.append((site.upload("demo", 1, file_of(1.0)), "run-over"))
    assert [(answer.status_code, answer.json()["code"]) for answer, _ in cases] == [
        (409, code) for _, code in cases
    ]
    assert [code for _, code in refused(at, "update_refused")] == [code for _, code in cases]


class Clock:
    """Real time, and what the test adds to it."""

    def __init__(self) -> None:
        self.ahead = dt.timedelta(0)

    def __call__(self) -> dt.datetime:
        return utc_now() + self.ahead


@pytest.mark.parametrize("sign_of_life", ["poll", "heartbeat"])
def test_after_the_deadline(database_url: str, tmp_path: Path, sign_of_life: str) -> None:
    clock = Clock()
    with live(database_url, tmp_path / "data", clock_by(clock)) as at:
        at.create(min_clients=2, rounds=2, quorum=1, weighting={"kind": "sizes"}, round_deadline_seconds=3600)
        prompt, slow = enrolled(at, (10, 10))
        slow.until("train")
        assert prompt.upload("demo", 1, file_of(1.0)).status_code == 200
        clock.ahead = dt.timedelta(hours=2)
        at.wait_for(lambda: at.run()["completed_rounds"] == 1)
        late = slow.upload("demo", 1, file_of(5.0))
        assert late.status_code == 409
        assert at.run()["model"] == sha256(file_of(1.0))
        assert {
            row["client"]: row["status"] for row in at.admin.get("/runs/demo/rounds/1").json()["ledger"]
        } == {
            "site-0": "aggregated",
            "site-1": "timed_out",
        }
        assert enrolment(at, slow)["status"] == "away"
        if sign_of_life == "poll":
            slow.work()
        else:
            beat = slow.http.post("/runs/demo/rounds/1/progress", json={"attempt": 1})
            assert beat.json()["proceed"] is False
        assert enrolment(at, slow)["status"] == "ready", "it was heard of again"
        at.coordinator.presence.flush()
        assert enrolment(at, slow)["last_seen_at"] is not None


def enrolment(at: Live, site: ManualClient) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in at.run()["enrolments"] if row["client"] == site.name)
    return found


def test_nobody_uploads_for_another(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    body = file_of(1.0)
    for token, status, code in (
        (None, 401, "missing-token"),
        ("x" * 43, 401, "wrong-token"),
        (ADMIN, 401, "wrong-token"),
    ):
        forged = ManualClient(at.http(token), "forged").upload("demo", 1, body)
        assert (forged.status_code, forged.json()["code"]) == (status, code)
        assert forged.headers["www-authenticate"].startswith("Bearer")
    assert site.upload("nowhere", 1, body).json()["code"] == "not-found"
