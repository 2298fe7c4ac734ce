"""Stored files that are deleted, damaged or unreadable, before and after they are needed."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from server.blobs.integrity import BlobIntegrity
from server.runs.assignments import ASK_AGAIN_SECONDS
from tests.helpers.clocks import clock_by
from tests.helpers.live_coordinator import (
    Live,
    ManualClient,
    content_digest,
    enrolled,
    file_of,
    live,
    sha256,
)

FIRST, SECOND, MEAN = file_of(1.0), file_of(3.0), sha256(file_of(2.0))  # equally weighted
Harm = Callable[[Path], object]


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARM: dict[str, Harm] = {
    "is missing": Path.unlink,
    "is damaged: its bytes have another SHA-256": lambda path: path.write_bytes(file_of(7.0)),
    "cannot be read: Is a directory": put_folder,
}


def harmed_round(at: Live, harm: Harm) -> list[ManualClient]:
    """Two updates are needed; the first is harmed on the disk, then the second arrives."""
    at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
    first, second = enrolled(at, (10, 10))
    assert first.upload("demo", 1, FIRST).status_code == 200
    harm(at.coordinator.blobs.path(sha256(FIRST)))
    assert second.upload("demo", 1, SECOND).status_code == 200
    at.wait_for(lambda: "delayed" in at.run()["waiting_for"])
    return [first, second]


def told(at: Live, kind: str) -> list[dict[str, object]]:
    return [{"client": e["client"], **e["detail"]} for e in at.events() if e["kind"] == kind]


@pytest.mark.parametrize("fault", ["is missing", "is damaged: its bytes have another SHA-256"])
def test_c10_a_lost_update_is_told_and_sent_again(database_url: str, tmp_path: Path, fault: str) -> None:
    """Case C10: a stored update deleted from the disk before the aggregation."""
    with live(database_url, tmp_path / "data") as at:
        first, second = harmed_round(at, HARM[fault])
        sentence = f"delayed: the stored update of site-0 {fault}; site-0 is asked to send it again"
        assert sentence in at.run()["waiting_for"]
        assert sentence in httpx.get(f"{at.url}/runs/demo", timeout=30).text
        assert "site-0" not in second.http.get("/runs/demo").json()["waiting_for"], "not the others' business"
        ready = httpx.get(f"{at.url}/readyz", timeout=30)
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["checks"]["files"].endswith("1 stored file is missing or damaged")
        assert ready.json()["checks"]["aggregation"].endswith("1 round is waiting to be aggregated")
        metrics = httpx.get(f"{at.url}/metrics", timeout=30).text.splitlines()
        for line in (
            'feddisco_stored{noun="blobs",status="faulty"} 1.0',
            'feddisco_stored{noun="rounds",status="delayed"} 1.0',
            "feddisco_delayed_aggregations 1.0",
        ):
            assert line in metrics
        assert told(at, "update_lost") == [
            {"client": "site-0", "attempt": 1, "update": sha256(FIRST), "reason": fault}
        ]

        assignment = first.work()
        assert assignment is not None
        assert (assignment["kind"], assignment["round"], assignment["again"]) == ("train", 1, True)
        assert second.work() is None
        receipt = first.upload("demo", 1, FIRST)
        assert receipt.status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed", seconds=10)
        assert at.run()["model"] == MEAN
        assert told(at, "update_restored") == [{"client": "site-0", "attempt": 1, "update": sha256(FIRST)}]
        assert httpx.get(f"{at.url}/readyz", timeout=30).json()["status"] == "ok"


@pytest.mark.parametrize("end", ["stop", "delete"])
def test_a_delayed_round_whose_run_is_stopped_is_no_longer_waited_for(
    database_url: str, tmp_path: Path, end: str
) -> None:
    with live(database_url, tmp_path / "data") as at:
        harmed_round(at, HARM["is missing"])
        assert httpx.get(f"{at.url}/readyz", timeout=30).json()["status"] == "degraded"
        assert at.admin.post("/runs/demo/stop").status_code == 200
        if end == "delete":
            assert at.admin.delete("/runs/demo").status_code == 200
        at.wait_for(lambda: at.coordinator.runner.delayed == 0, seconds=10)
        assert "feddisco_delayed_aggregations 0.0" in httpx.get(f"{at.url}/metrics", timeout=30).text


def test_an_update_that_was_collected_in_the_moment_in_which_it_came_is_asked_for(
    database_url: str, tmp_path: Path
) -> None:
    """The same bytes were an earlier run's: the collection forgets the file that this run has just named."""
    with live(database_url, tmp_path / "data") as at:

        def collect(path: Path) -> None:
            path.unlink()
            at.coordinator.store.forget_blobs([sha256(FIRST)])

        first, _ = harmed_round(at, collect)
        assert [each["client"] for each in told(at, "update_lost")] == ["site-0"]
        assignment = first.work()
        assert assignment is not None
        assert (assignment["kind"], assignment["again"]) == ("train", True)
        assert first.upload("demo", 1, FIRST).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed", seconds=10)
        assert at.run()["model"] == MEAN
        assert at.coordinator.store.is_recorded(sha256(FIRST))


def test_an_update_that_is_sent_again_while_the_others_are_read_counts(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading large files takes long after a restart: what was found lost is back before the last is read."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
        first, second = enrolled(at, (10, 10))
        assert first.upload("demo", 1, FIRST).status_code == 200
        at.coordinator.blobs.path(sha256(FIRST)).unlink()
        sent: list[int] = []
        find_fault = BlobIntegrity.find_fault

        def find_slowly(integrity: BlobIntegrity, digest: str) -> str | None:
            if digest == sha256(SECOND) and not sent and at.coordinator.store.faulty_blobs():
                sent.append(first.upload("demo", 1, FIRST).status_code)
            return find_fault(integrity, digest)

        monkeypatch.setattr(BlobIntegrity, "find_fault", find_slowly)
        assert second.upload("demo", 1, SECOND).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed", seconds=10)
        assert sent == [200]
        assert at.run()["model"] == MEAN
        kinds = {event["kind"] for event in at.events()}
        assert not kinds & {"aggregation_failed", "aggregation_delayed", "round_abandoned"}


def test_an_update_that_is_not_sent_again_is_left_out_and_the_ledger_says_so(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data", lost_update_seconds=2) as at:
        harmed_round(at, HARM["is missing"])
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == sha256(SECOND)
        lost, whole = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
        assert (lost["status"], lost["included"], lost["reason"]) == (
            "rejected", False, "its stored update is missing"
        )  # fmt: skip
        assert (whole["status"], whole["weight"]) == ("aggregated", 1.0)


def test_below_the_quorum_the_round_is_drawn_again(tmp_path: Path, database_url: str) -> None:
    with live(database_url, tmp_path / "data", lost_update_seconds=0) as at:
        at.create(min_clients=2, quorum=2, rounds=1, weighting={"kind": "sizes"})
        first, second = enrolled(at, (10, 10))
        assert first.upload("demo", 1, FIRST).status_code == 200
        at.coordinator.blobs.path(sha256(FIRST)).unlink()
        assert second.upload("demo", 1, SECOND).status_code == 200
        at.wait_for(lambda: at.run()["current_round"]["attempt"] == 2)
        assert first.until("train")["attempt"] == 2
        (abandoned,) = [event for event in at.events() if event["kind"] == "round_abandoned"]
        assert "1 of 2 needed updates are left (that of site-0 is missing)" in abandoned["detail"]["reason"]


@pytest.mark.parametrize("fault", HARM)
def test_a_round_waits_for_what_it_starts_from_and_goes_on_when_it_is_uploaded(
    database_url: str, tmp_path: Path, fault: str
) -> None:
    with live(database_url, tmp_path / "data", lost_update_seconds=0) as at:
        made = at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
        (site,) = enrolled(at, (10,))
        path = at.coordinator.blobs.path(made["initial_model"])
        HARM[fault](path)
        assert site.upload("demo", 1, FIRST).status_code == 200
        at.wait_for(lambda: "delayed" in at.run()["waiting_for"])
        assert (
            f"the model that the round starts from, {made['initial_model']}, {fault}"
            in at.run()["waiting_for"]
        )
        if path.is_dir():
            path.rmdir()
        body = file_of(0.0)
        headers = {"Content-Type": "application/octet-stream", "Content-Digest": content_digest(body)}
        assert at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=headers).status_code == 204
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == sha256(FIRST)


def test_a_client_that_cannot_send_it_again_is_asked_once_a_minute(database_url: str, tmp_path: Path) -> None:
    ahead = dt.timedelta(0)
    with live(database_url, tmp_path / "data", clock_by(lambda: dt.datetime.now(dt.UTC) + ahead)) as at:
        first, _ = harmed_round(at, HARM["is missing"])
        assert first.until("train")["again"]
        other = first.upload("demo", 1, file_of(5.0))
        assert other.json()["code"] == "update-already-received"
        assert first.work() is None
        ahead = dt.timedelta(seconds=ASK_AGAIN_SECONDS)
        assert first.until("train")["again"]


def test_a_damaged_file_is_not_served(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        made = at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
        (site,) = enrolled(at, (10,))
        digest = made["initial_model"]
        path = at.coordinator.blobs.path(digest)
        path.write_bytes(file_of(7.0))
        for http in (site.http, at.admin):
            answer = http.get(f"/blobs/{digest}")
            assert (answer.status_code, answer.json()["code"]) == (503, "storage-unavailable")
            assert (
                answer.json()["detail"]
                == f"the stored file {digest} is damaged: its bytes have another SHA-256"
            )
        path.unlink()
        assert site.http.get(f"/blobs/{digest}").json()["detail"] == f"the stored file {digest} is missing"
        path.write_bytes(file_of(0.0))
        assert site.http.get(f"/blobs/{digest}").content == file_of(0.0)
        assert at.coordinator.store.faulty_blobs() == []
        assert at.admin.get(f"/blobs/{'0' * 64}").status_code == 404


def test_what_was_at_fault_is_known_after_a_restart(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        harmed_round(at, HARM["is missing"])
    with live(database_url, tmp_path / "data") as at:
        assert httpx.get(f"{at.url}/readyz", timeout=30).json()["status"] == "degraded"
        assert len(told(at, "update_lost")) == 1
        at.coordinator.blobs.path(sha256(FIRST)).write_bytes(FIRST)
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.coordinator.store.faulty_blobs() == []


def test_the_scrub_finds_what_changed_behind_the_file_systems_back(database_url: str, tmp_path: Path) -> None:
    """Same size, same times: only reading it shows it."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
        first, _ = enrolled(at, (10, 10))
        assert first.upload("demo", 1, FIRST).status_code == 200
        scrub, store = at.coordinator.scrub, at.coordinator.store
        asyncio.run(scrub.look())
        assert store.faulty_blobs() == []
        path = at.coordinator.blobs.path(sha256(FIRST))
        before = path.stat()
        path.write_bytes(file_of(7.0))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert at.coordinator.faults.find(sha256(FIRST)) is None
        asyncio.run(scrub.look())
        assert store.faulty_blobs() == [], "it was read a moment ago"
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE blobs SET checked_at = NULL")
        asyncio.run(scrub.look())
        assert store.faulty_blobs() == [sha256(FIRST)]
        asyncio.run(scrub.look())
        assert store.faulty_blobs() == [sha256(FIRST)], "that the file looks as before says nothing"
        assert first.until("train")["again"]
        assert first.upload("demo", 1, FIRST).status_code == 200
        assert store.faulty_blobs() == []


@pytest.mark.parametrize("is_noticed", [True, False], ids=["changed", "same size and times"])
@pytest.mark.parametrize("place", [20, -1], ids=["header", "numbers"])
def test_no_update_is_blamed_for_a_damaged_start_model(
    database_url: str, tmp_path: Path, place: int, is_noticed: bool
) -> None:
    """A bit of the model on the coordinator's disk flips: the clients' updates are as good as before."""
    with live(database_url, tmp_path / "data") as at:
        made = at.create(value=0.5, min_clients=1, rounds=1, weighting={"kind": "sizes"}, max_norm=0.5)
        (site,) = enrolled(at, (10,))
        path = at.coordinator.blobs.path(made["initial_model"])
        assert at.coordinator.faults.find(made["initial_model"]) is None
        whole, before = path.read_bytes(), path.stat()
        flipped = bytearray(whole)
        flipped[place] ^= 0x40  # of a number: 0.5 becomes 2e38
        path.write_bytes(flipped)
        if not is_noticed:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        answer = site.upload("demo", 1, file_of(0.6))
        assert answer.status_code == 200, answer.text
        assert at.coordinator.store.faulty_blobs() == [made["initial_model"]]
        path.write_bytes(whole)
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == sha256(file_of(0.6))
