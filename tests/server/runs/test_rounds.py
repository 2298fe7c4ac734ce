"""Aggregations that were interrupted, raced or spoiled; and what is collected."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.clock import utc_now
from server.database.migrations import upgrade
from server.database.step.facts import UpdateFacts
from server.lifecycle.events import UpdateReceived
from server.runs.runner import ORPHANED_AFTER_SECONDS
from server.runs.verification import verify
from tests.helpers.clocks import clock_by
from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live, process, sha256

MEAN = sha256(file_of(2.0))  # of 1 and 3, equally weighted


def left_aggregating(at: Live) -> None:
    """A round whose updates are in, while nobody aggregates: as after a kill."""
    at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
    first, second = enrolled(at, (10, 10))
    assert first.upload("demo", 1, file_of(1.0)).status_code == 200
    at.coordinator.runner.close()
    assert second.upload("demo", 1, file_of(3.0)).status_code == 200
    assert at.run()["current_round"]["status"] == "aggregating"


def test_a_restart_finishes_what_was_being_aggregated(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        left_aggregating(at)
    with live(database_url, tmp_path / "data") as at:
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == MEAN


def test_a_round_waits_for_an_accepted_update_that_is_not_there(database_url: str, tmp_path: Path) -> None:
    """A volume that is not mounted must not cost a client its update."""
    with live(database_url, tmp_path / "data") as at:
        left_aggregating(at)
        path = at.coordinator.blobs.path(sha256(file_of(1.0)))
        path.rename(tmp_path / "elsewhere")
    with live(database_url, tmp_path / "data") as at:
        time.sleep(3)
        assert at.run()["current_round"]["status"] == "aggregating"
        (tmp_path / "elsewhere").rename(path)
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == MEAN


def test_a_round_that_cannot_be_aggregated_yet_is_tried_again_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    upgrade(url)
    with live(url, tmp_path / "data") as at:
        left_aggregating(at)
        at.coordinator.blobs.path(sha256(file_of(1.0))).unlink()
    with live(url, tmp_path / "data") as at:

        def delays() -> list[str]:
            told = [row.getMessage() for row in caplog.records if row.name == "feddisco.rounds"]
            return [line.rpartition("tried again in ")[2] for line in told if "stays open" in line]

        at.wait_for(lambda: len(delays()) >= 3)
        assert delays()[:3] == ["1 s", "2 s", "4 s"]
        assert at.run()["current_round"]["status"] == "aggregating"


def test_a_damaged_update_is_left_out(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        left_aggregating(at)
        at.coordinator.blobs.path(sha256(file_of(1.0))).write_bytes(file_of(7.0))
    with live(database_url, tmp_path / "data", lost_update_seconds=0) as at:
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == sha256(file_of(3.0))
        lost, whole = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
        assert (lost["status"], whole["status"], whole["weight"]) == ("rejected", "aggregated", 1.0)
        assert "another SHA-256" in lost["reason"]


def test_a_round_that_cannot_be_aggregated_is_drawn_anew_then_the_run_pauses(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        algorithm = {
            "name": "fedavgm",
            "parameters": {"server_learning_rate": 10.0},
        }  # ten times 3e38 is infinite
        believed = {"max_entry": 3.4e38, "max_norm": 1e40}
        config: dict[str, Any] = {"algorithm": algorithm, "weighting": {"kind": "sizes"}, **believed}
        at.create(min_clients=1, rounds=1, max_attempts=2, **config)
        (site,) = enrolled(at, (10,))
        huge = file_of(3e38)
        for attempt in (1, 2):
            assert site.until("train")["attempt"] == attempt
            assert site.upload("demo", 1, huge, attempt=attempt).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "paused")
        assert "the aggregation failed" in at.run()["reason"]
        reply = httpx.get(f"{at.url}/metrics", timeout=30).text
        assert "feddisco_aggregation_failures_total 2.0" in reply


def test_a_deadline_over_which_no_coordinator_was_there(database_url: str, tmp_path: Path) -> None:
    """The host was down for two hours of a round of one: the update trained meanwhile still counts."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"}, round_deadline_seconds=3600)
        anna, ben = enrolled(at, (10, 10))
        assert anna.upload("demo", 1, file_of(1.0)).status_code == 200
        token = ben.http.headers["Authorization"].removeprefix("Bearer ")
    away = dt.timedelta(hours=2)
    with live(database_url, tmp_path / "data", clock_by(lambda: utc_now() + away)) as at:
        time.sleep(1.2)  # more than one look at the deadlines
        assert at.run()["current_round"]["status"] == "collecting"
        (moved,) = [event for event in at.events() if event["kind"] == "deadline_moved"]
        assert 7200 <= moved["detail"]["absence_seconds"] < 7300
        assert ManualClient(at.http(token), "ben").upload("demo", 1, file_of(3.0)).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == MEAN, "what it would have been"


def test_two_coordinators_aggregate_once(database_url: str, tmp_path: Path) -> None:
    """Both do the work; the compare-and-swap lets one result in, and the loser minds not."""
    with live(database_url, tmp_path / "data") as one:
        left_aggregating(one)
    with live(database_url, tmp_path / "data") as one, live(database_url, tmp_path / "data") as two:
        one.wait_for(lambda: two.run()["status"] == "completed")
        completed = [event for event in one.events() if event["kind"] == "round_completed"]
        assert len(completed) == 1
        assert one.run()["model"] == MEAN


def test_another_coordinators_orphan_is_taken_over(database_url: str, tmp_path: Path) -> None:
    """A process that was killed leaves its round AGGREGATING; one that lives finds it by its age."""
    ahead = dt.timedelta(0)
    with live(database_url, tmp_path / "data", clock_by(lambda: utc_now() + ahead)) as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
        first, second = enrolled(at, (10, 10))
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        body = file_of(3.0)
        incoming = tmp_path / "body"
        incoming.write_bytes(body)
        at.coordinator.blobs.adopt(incoming)
        # applied without a shell, as if the process that did it had been killed right after its commit
        facts = UpdateFacts(sha256(body), len(body), 1, None, 0.0)
        event = UpdateReceived(second.name, 1, 1)
        at.coordinator.store.apply("demo", event, actor=second.name, now=utc_now(), facts=facts)
        time.sleep(1.2)
        assert at.run()["status"] == "running", "too young to be an orphan"
        ahead = dt.timedelta(seconds=ORPHANED_AFTER_SECONDS)
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == MEAN


def test_unreferenced_files_are_collected_and_others_are_not(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data", collect_after_seconds=60) as at:
        made = at.create()
        stray = file_of(9.0)
        path = tmp_path / "stray"
        path.write_bytes(stray)
        blobs = at.coordinator.blobs
        blobs.adopt(path)
        old = time.time() - 120
        os.utime(blobs.path(sha256(stray)), (old, old))
        os.utime(blobs.path(made["initial_model"]), (old, old))
        assert at.coordinator.runner.collect_strays() == 1
        assert not blobs.exists(sha256(stray))
        assert blobs.exists(made["initial_model"])


def test_updates_that_are_no_longer_kept_go_soon_with_their_rows(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"}, keep_updates=0)
        bodies = [file_of(10.0), file_of(11.0)]
        for site, body in zip(enrolled(at, (10, 10)), bodies, strict=True):
            assert site.upload("demo", 1, body).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        store, blobs, runner = at.coordinator.store, at.coordinator.blobs, at.coordinator.runner
        updates = {sha256(body) for body in bodies}
        assert set(store.unneeded_blobs()) == updates
        assert runner.collect_unneeded() == 0, "put a moment ago"
        old = time.time() - 700
        first, second = sorted(updates)
        os.utime(blobs.path(first), (old, old))
        assert runner.collect_unneeded() == 1
        assert (blobs.exists(first), blobs.exists(second)) == (False, True)
        assert store.recorded_blobs().keys() & updates == {second}
        assert verify(store, blobs).faults == ()
        assert "feddisco_collected_files_total 1.0" in at.admin.get(f"{at.url}/metrics").text


@pytest.mark.chaos
def test_kill_between_aggregation_and_commit(database_url: str, tmp_path: Path) -> None:
    """kill -9 in the gap that ``hold_aggregation_seconds`` opens; the next start ends with the same model."""
    with live(database_url, tmp_path / "data") as at:
        left_aggregating(at)
    held = process(tmp_path / "data", database_url, hold_aggregation_seconds=600)
    try:
        end = time.monotonic() + 100
        while not (tmp_path / "data" / "blobs" / MEAN[:2] / MEAN).exists():
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        held.send_signal(signal.SIGKILL)
        held.communicate()
    with live(database_url, tmp_path / "data") as at:
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == MEAN


def test_readers_are_not_held_up_by_an_aggregation(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data", hold_aggregation_seconds=2.0) as at:
        at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
        (site,) = enrolled(at, (10,))
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
        assert at.run()["current_round"]["status"] == "aggregating"
        at.wait_for(lambda: at.run()["status"] == "completed")
