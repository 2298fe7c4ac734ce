"""Two coordinators on one PostgreSQL: what one commits is known to the other in time, also without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from server.wakeups.postgres import PostgresRelay
from tests.helpers.databases import Postgres
from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live

pytestmark = pytest.mark.long

SOON = 5.0
"""Seconds: a look at what others do, and what a busy machine adds."""
LATEST = 12.0
"""The longest pause of a waiting poll when it asked the database itself."""


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    made = postgres.fresh()
    yield made
    postgres.recycle(made)


@pytest.fixture
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No coordinator tells another anything: every NOTIFY is lost."""
    monkeypatch.setattr(PostgresRelay, "send", lambda _self, _message: None)


@contextmanager
def two(url: str, tmp_path: Path) -> Iterator[tuple[Live, Live]]:
    """Both over the same files, as coordinators of one installation are."""
    with live(url, tmp_path / "data") as here, live(url, tmp_path / "data") as there:
        yield here, there


def idle(at: Live, name: str) -> ManualClient:
    """A client of which it is remembered that it has nothing to do."""
    site = at.site(name)

    def has_asked() -> bool:
        assert site.work() is None
        return at.coordinator.assignments.is_idle(name)

    at.wait_for(has_asked)
    return site


@contextmanager
def waiting(at: Live, site: ManualClient) -> Iterator[Future[tuple[float, httpx.Response]]]:
    """Its poll that waits: how long it took, and the answer."""

    def poll() -> tuple[float, httpx.Response]:
        began = time.monotonic()
        answer = site.http.get("/work", params={"wait": 30.0}, timeout=40)
        return time.monotonic() - began, answer

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(poll)
        at.wait_for(lambda: at.coordinator.hub.waiting_polls > 0)
        yield future


def test_a_run_of_another_coordinator_is_told_at_once(url: str, tmp_path: Path) -> None:
    with two(url, tmp_path) as (here, there):
        site = idle(here, "north")
        with waiting(here, site) as future:
            there.create(min_clients=1)
            seconds, answer = future.result()
            assert answer.json() == {"kind": "enrol", "run": "demo"}
            assert seconds < SOON


@pytest.mark.usefixtures("no_words")
def test_a_run_of_which_no_word_comes_reaches_a_poll_that_waits(url: str, tmp_path: Path) -> None:
    with two(url, tmp_path) as (here, there):
        site = idle(here, "north")
        with waiting(here, site) as future:
            time.sleep(2.0)  # it has made sure by now that nothing had been committed before it began
            there.create(min_clients=1)
            seconds, answer = future.result()
            assert answer.json() == {"kind": "enrol", "run": "demo"}
            assert seconds < 2.0 + LATEST


@pytest.mark.usefixtures("no_words")
def test_a_client_may_come_from_another_coordinator_with_something_to_do(url: str, tmp_path: Path) -> None:
    with two(url, tmp_path) as (here, there):
        site = idle(here, "north")
        there.create(min_clients=1)
        began = time.monotonic()
        found = site.work(wait=30.0)
        assert found == {"kind": "enrol", "run": "demo"}
        assert time.monotonic() - began < SOON


def test_what_a_client_does_at_one_wakes_its_poll_at_another(url: str, tmp_path: Path) -> None:
    """It enrols there, and its poll here was sent before the word of it had come."""
    with two(url, tmp_path) as (here, there):
        site = idle(here, "north")
        other = ManualClient(there.http(site.http.headers["Authorization"].split()[1]), "north")
        with waiting(here, site) as future:
            there.create(min_clients=1)
            assert future.result()[1].json()["kind"] == "enrol"
        assert other.enrol("demo", 10, role="evaluator").status_code == 200
        assert here.site("south").enrol("demo", 10).status_code == 200
        assert site.until("evaluate")["round"] == 0


@pytest.mark.usefixtures("no_words")
@pytest.mark.parametrize("call", ["revoke", "erase"])
def test_who_is_gone_elsewhere_is_refused_in_time(url: str, tmp_path: Path, call: str) -> None:
    with two(url, tmp_path) as (here, there):
        site = idle(here, "north")
        with waiting(here, site) as future:
            if call == "revoke":
                assert there.admin.delete("/clients/north").status_code == 204
            else:
                assert there.admin.post("/clients/north/erase").status_code == 200
            began = time.monotonic()
            answer = site.http.get("/work")
            while answer.status_code == 200 and time.monotonic() - began < SOON:
                answer = site.http.get("/work")
            assert answer.status_code == 401
            if call == "revoke":
                seconds, answer = future.result()
                assert answer.status_code == 401
                assert seconds < SOON


@pytest.mark.usefixtures("no_words")
def test_a_pause_and_what_follows_reach_who_waits(url: str, tmp_path: Path) -> None:
    """The round after a pause is opened at one coordinator, and trained by a client that waits at another."""
    with two(url, tmp_path) as (here, there):
        there.create(min_clients=1, rounds=2, weighting={"kind": "sizes"})
        site = here.site("north")
        assert site.enrol("demo", 10).status_code == 200
        assert site.until("train")["round"] == 1
        assert there.admin.post("/runs/demo/pause", json={"reason": "no"}).status_code == 200
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
        here.wait_for(lambda: here.run()["completed_rounds"] == 1)
        here.wait_for(lambda: site.work() is None and here.coordinator.assignments.is_idle("north"))
        with waiting(here, site) as future:
            assert there.admin.post("/runs/demo/resume").status_code == 200
            seconds, answer = future.result()
            assert (answer.json()["kind"], answer.json()["round"]) == ("train", 2)
            assert seconds < LATEST


def test_idle_polls_ask_the_database_nothing(url: str, tmp_path: Path) -> None:
    """Of many clients, longer than the pause after which each had asked."""
    many, lock = 50, threading.Lock()
    with live(url, tmp_path / "data") as at, ThreadPoolExecutor(many) as pool:
        sites = [at.site(f"site-{index}") for index in range(many)]
        about_clients: list[str] = []

        def note(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            if "SELECT" in statement and ("enrolments" in statement or "clients.token_hash" in statement):
                with lock:
                    about_clients.append(statement)

        def all_known() -> bool:
            assert all(site.work() is None for site in sites)
            assignments = at.coordinator.assignments
            return all(assignments.is_idle(site.name) and assignments.is_present(site.name) for site in sites)

        at.wait_for(all_known)
        sa.event.listen(at.coordinator.store.engine, "before_cursor_execute", note)
        found = pool.map(lambda site: site.work(wait=LATEST), sites)
        assert list(found) == [None] * many
        # the poll may be unlucky and look while a commit of this process is not noted as such yet
        assert len(about_clients) < many / 5, about_clients[:3]


def test_updates_that_come_together_read_the_run_as_it_is_known(url: str, tmp_path: Path) -> None:
    many = 8
    with live(url, tmp_path / "data") as at, ThreadPoolExecutor(many) as pool:
        at.create(min_clients=many, rounds=1, weighting={"kind": "sizes"})
        sites = enrolled(at, [10] * many)
        assert all(site.until("train") for site in sites)
        loaded: list[str] = []

        def note(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            if "newest.round" in statement:
                loaded.append(statement)

        sa.event.listen(at.coordinator.store.engine, "before_cursor_execute", note)
        answers = pool.map(lambda site: site.upload("demo", 1, file_of(1.0)).status_code, sites)
        assert list(answers) == [200] * many
        sa.event.remove(at.coordinator.store.engine, "before_cursor_execute", note)
        # it was read at each update to check it, and once more where another had moved it meanwhile
        assert len(loaded) < many / 2
        assert at.wait_for(lambda: at.run()["status"] == "completed")
