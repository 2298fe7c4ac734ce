"""The long poll: answered at once when there is something, and asleep until then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.web.calls import Call
from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live

AT_ONCE = 1.0  # seconds; the design's target for the next assignment


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


class Poll:
    """A long poll on a thread of its own, with the time of its answer."""

    def __init__(self, at: Live, site: ManualClient, wait: float) -> None:
        self.answer: Any = None
        self.answered = 0.0
        self._before = at.coordinator.hub.waiting_polls
        self._thread = threading.Thread(target=self._run, args=(site, wait))
        self._thread.start()
        at.wait_for(lambda: at.coordinator.hub.waiting_polls > self._before)
        time.sleep(0.1)  # its query is over, it sleeps

    def _run(self, site: ManualClient, wait: float) -> None:
        self.answer = site.http.get("/work", params={"wait": wait}, timeout=wait + 10)
        self.answered = time.monotonic()

    def join(self) -> Any:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        return self.answer


def test_a_new_run_wakes_everybody(at: Live) -> None:
    poll = Poll(at, at.site("early"), wait=20)
    at.create()
    created = time.monotonic()
    assert poll.join().json() == {"kind": "enrol", "run": "demo"}
    assert poll.answered - created < AT_ONCE


def test_the_next_round_wakes_its_participants(at: Live) -> None:
    at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"})
    first, second = enrolled(at, (10, 10))
    assert first.upload("demo", 1, file_of(1.0)).status_code == 200
    poll = Poll(at, first, wait=55)  # the first aggregation of a process imports PyTorch
    assert second.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1, seconds=50)
    aggregated = time.monotonic()
    assert poll.join().json()["round"] == 2
    assert poll.answered - aggregated < AT_ONCE


def test_the_end_of_a_run_is_told(at: Live) -> None:
    at.create(min_clients=2, weighting={"kind": "sizes"})
    site = at.site("site-0")
    site.enrol("demo", 10)
    poll = Poll(at, site, wait=20)
    at.admin.post("/runs/demo/stop", json={"reason": "over"})
    assert poll.join().json()["kind"] == "finished"


def test_a_poll_that_brings_nothing_says_what_is_waited_for(at: Live) -> None:
    at.create(min_clients=2, weighting={"kind": "sizes"})
    site = at.site("site-0")
    site.enrol("demo", 10)
    started = time.monotonic()
    answer = site.http.get("/work", params={"wait": 0.5})
    assert answer.status_code == 200
    assert answer.json() == {
        "kind": "wait",
        "reason": "demo: 1 of 2 trainers is ready; the run starts with 2",
    }
    assert time.monotonic() - started >= 0.5


def test_an_assignment_that_was_taken_is_given_again(at: Live) -> None:
    """A worker that was killed in between gets the same work, and the page says that it trains."""
    at.create(min_clients=1, weighting={"kind": "sizes"})
    (site,) = enrolled(at, (10,))
    assert site.until("train") == site.until("train")
    assert at.run()["current_round"]["ledger"][0]["status"] == "training"


def test_a_revoked_token_ends_a_poll_that_waits(at: Live) -> None:
    poll = Poll(at, at.site("former"), wait=20)
    assert at.admin.delete("/clients/former").status_code == 204
    revoked = time.monotonic()
    answer = poll.join()
    assert (answer.status_code, answer.json()["code"]) == (401, "revoked-token")
    assert poll.answered - revoked < AT_ONCE
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_poll_whose_client_hangs_up_holds_no_place(at: Live) -> None:
    site = at.site("impatient")
    hub, places = at.coordinator.hub, at.coordinator.gate.places[Call.POLL]
    with pytest.raises(httpx.ReadTimeout):
        site.http.get("/work", params={"wait": 50}, timeout=0.5)
    at.wait_for(lambda: hub.waiting_polls == places.taken == 0, seconds=5)
    at.create()
    assert site.work() == {"kind": "enrol", "run": "demo"}


def test_shutdown_answers_those_who_wait(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        poll = Poll(at, at.site("patient"), wait=50)
        asked = time.monotonic()
    answer = poll.join()
    assert answer.json() == {"kind": "wait", "reason": "the coordinator is shutting down"}
    assert poll.answered - asked < 5


def test_two_coordinators_on_one_database_wake_each_others_clients(postgres: Any, tmp_path: Path) -> None:
    url = postgres.fresh()
    data = tmp_path / "data"
    try:
        with live(url, data) as one, live(url, data) as two:
            one.wait_for(lambda: one.coordinator.hub.relay is not None)
            site = one.site("site-0")
            elsewhere = ManualClient(
                two.http(site.http.headers["Authorization"].removeprefix("Bearer ")), site.name
            )
            time.sleep(0.5)  # both listen
            poll = Poll(two, elsewhere, wait=20)
            one.create()
            created = time.monotonic()
            assert poll.join().json()["kind"] == "enrol"
            assert poll.answered - created < AT_ONCE
    finally:
        postgres.drop(url)
