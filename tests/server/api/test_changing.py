"""``PATCH /runs/{run}``: a changed run, in every process, in the log, and at the sites."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.database.session import make_engine
from server.database.store import Store
from server.lifecycle.state import Policy
from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def play_round(at: Live, sites: list[ManualClient], number: int) -> None:
    for place, site in enumerate(sites):
        assert site.until("train")["round"] == number
        assert site.upload("demo", number, file_of(10.0 * number + 2 * place)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] >= number)


def test_a_change_reaches_every_process_and_the_log(at: Live, database_url: str) -> None:
    at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
    other = Store(make_engine(database_url))  # as another coordinator on the same database
    assert other.run_state("demo").policy.rounds == 1
    sites = enrolled(at, (10, 10))
    assert sites[0].until("train")["revision"] == 0
    answer = at.admin.patch("/runs/demo", json={"rounds": 2, "round_deadline_seconds": 7200})
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert (view["revision"], view["config"]["rounds"], view["rounds"]) == (1, 2, 2)
    assert sites[0].until("train")["revision"] == 1
    config = at.coordinator.store.run_view("demo", at.coordinator.clock()).config
    assert other.run_state("demo").policy == Policy.of(config)
    assert other.run_view("demo", at.coordinator.clock()).config == config
    play_round(at, sites, 1)
    play_round(at, sites, 2)
    at.wait_for(lambda: at.run()["status"] == "completed")
    assert at.run()["completed_rounds"] == 2
    (event,) = [event for event in at.events() if event["kind"] == "run_changed"]
    deadline = event["detail"].pop("deadline_at")
    assert deadline > event["at"]
    assert event["detail"] == {
        "changes": {"rounds": [1, 2], "round_deadline_seconds": [3600.0, 7200.0]},
        "revision": 1,
    }
    assert "changed 1 time" in at.admin.get(f"{at.url}/runs/demo").text
    other.engine.dispose()


def test_what_is_so_already_changes_nothing(at: Live) -> None:
    at.create(min_clients=2, rounds=3)
    before = at.run()
    assert at.admin.patch("/runs/demo", json={"rounds": 3, "quorum": None}).json() == before
    assert at.admin.patch("/runs/demo", json={}).json()["revision"] == 0


def test_a_change_that_cannot_be_is_refused_with_its_reason(at: Live) -> None:
    at.create(min_clients=2, rounds=3)
    wrong = {
        "quorum 5 is more than the 2 clients": {"quorum": 5},
        "rounds: Input should be greater than or equal to 1 (received 0)": {"rounds": 0},
        "rounds: Input should be a valid integer": {"rounds": None},
        "round_deadline_seconds: Input should be greater than 0": {"round_deadline_seconds": -1},
    }
    for reason, changes in wrong.items():
        answer = at.admin.patch("/runs/demo", json=changes)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-configuration"), answer.text
        assert reason in answer.json()["detail"]
    assert at.admin.patch("/runs/demo", json={"seed": 5}).status_code == 422, "no field that bits depend on"
    assert at.admin.patch("/runs/none", json={"rounds": 5}).status_code == 404
    site = at.site("curious")
    assert site.http.patch("/runs/demo", json={"rounds": 5}).status_code == 403
    assert at.run()["revision"] == 0


def test_weights_that_go_by_the_number_of_rounds_keep_it(at: Live) -> None:
    at.create(min_clients=2, rounds=3, weighting={"kind": "feddgga"})
    answer = at.admin.patch("/runs/demo", json={"rounds": 5})
    assert (answer.status_code, "depend on the number of rounds" in answer.json()["detail"]) == (422, True)
    assert at.admin.patch("/runs/demo", json={"quorum": 2}).json()["config"]["quorum"] == 2


def test_an_ended_run_can_keep_less_and_the_rest_is_deleted_soon(at: Live) -> None:
    at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"})
    sites = enrolled(at, (10, 10))
    for number in (1, 2):
        play_round(at, sites, number)
    at.wait_for(lambda: at.run()["status"] == "completed")
    assert at.coordinator.store.unneeded_blobs() == []
    refused = at.admin.patch("/runs/demo", json={"keep_updates": 1, "rounds": 9})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal-transition")
    assert at.admin.patch("/runs/demo", json={"keep_updates": 1}).json()["config"]["keep_updates"] == 1
    gone = at.coordinator.store.unneeded_blobs()
    assert len(gone) == 2
    for digest in gone:
        os.utime(at.coordinator.blobs.path(digest), (time.time() - 700,) * 2)
    assert at.coordinator.runner.collect_unneeded() == 2
    assert at.admin.patch("/runs/demo", json={"keep_updates": None}).status_code == 200
    assert at.coordinator.store.referenced_blobs().isdisjoint(gone), "what was deleted does not come back"
