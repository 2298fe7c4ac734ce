"""A client that has nothing to do is looked up again only when something has been written since."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from server import app
from server.database import others
from server.database.session import make_engine
from server.wakeups.postgres import PostgresRelay
from shared.schemas import Progress
from tests.helpers import live_coordinator
from tests.helpers.live_coordinator import Live, enrolled, file_of


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL: one look at what others do, at the start, which is believed for the rest of the test."""
    monkeypatch.setattr(app, "OTHERS_SECONDS", 3600.0)
    monkeypatch.setattr(others, "TRUSTED_SECONDS", 3600.0)
    monkeypatch.setattr(PostgresRelay, "run", _say_nothing)


async def _say_nothing(_relay: PostgresRelay) -> None:
    await asyncio.sleep(3600)


@contextmanager
def live(database_url: str, folder: Path) -> Iterator[Live]:
    with live_coordinator.live(database_url, folder) as at:
        at.wait_for(lambda: at.coordinator.store.is_watched)
        yield at


def test_a_poll_in_vain_is_remembered_until_there_is_news(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        assignments = at.coordinator.assignments
        site = at.site("site-0")
        assert not assignments.is_idle("site-0")
        assert site.work() is None
        assert assignments.is_idle("site-0")
        assert assignments.is_present("site-0")
        assert assignments.recall_reason("site-0") == "no run on this coordinator is open to this client"

        at.coordinator.presence.flush()  # when it was last seen is no news
        at.coordinator.store.note_alive(at.coordinator.clock(), lambda before: dt.timedelta(0))
        assert assignments.is_idle("site-0")

        at.create(min_clients=1)
        assert not assignments.is_idle("site-0")
        assert assignments.recall_reason("site-0") is None
        assert (site.work() or {})["kind"] == "enrol"


def test_a_heartbeat_is_no_news_and_an_update_no_work(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=3, rounds=1, weighting={"kind": "sizes"})
        first, second, third = enrolled(at, (10, 10, 10))
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        assert first.work() is None
        idle = at.coordinator.assignments.is_idle
        assert idle("site-0")
        beat = Progress(attempt=1, step=1, steps=2, epoch=0, epochs=1)
        address = "/runs/demo/rounds/1/progress"
        assert second.http.post(address, json=beat.model_dump()).status_code == 200
        assert idle("site-0")
        waits = at.coordinator.assignments.recall_reason
        assert waits("site-0") is not None
        assert (second.work() or {})["kind"] == "train"
        assert not idle("site-1")
        assert second.upload("demo", 1, file_of(3.0)).status_code == 200
        assert waits("site-0") is None  # fewer are missing now
        assert idle("site-0")
        assert idle("site-1")  # it had nothing else to do
        assert third.upload("demo", 1, file_of(3.0)).status_code == 200
        first.until("finished")


def test_who_has_more_to_do_is_not_idle_after_its_update(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        for name in ("demo", "other"):
            at.create(name=name, min_clients=2, rounds=1, weighting={"kind": "sizes"})
        first, _ = enrolled(at, (10, 10))
        assert (first.work() or {})["kind"] == "train"
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        assert not at.coordinator.assignments.is_idle("site-0")
        assert (first.work() or {}) == {"kind": "enrol", "run": "other"}


def test_a_run_that_is_deleted_while_its_work_is_taken_is_nobodys_error(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
        (site,) = enrolled(at, (10,))
        runner, store, now = at.coordinator.runner, at.coordinator.store, at.coordinator.clock()
        follow_time = runner.follow_time

        def delete() -> None:
            runner.follow_time = follow_time
            store.delete_run("demo", reason="", actor="admin", now=now, even_open=True)

        runner.follow_time = delete
        assert site.work() is None
        assert runner.follow_time is not delete, "it had an assignment"


def test_the_last_update_of_a_round_that_is_drawn_again_is_work(database_url: str, tmp_path: Path) -> None:
    """One has failed, and all are needed: the last of the others opens the next attempt."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=3, quorum=3, rounds=1, weighting={"kind": "sizes"})
        first, second, third = enrolled(at, (10, 10, 10))
        for site in (first, second, third):
            assert (site.work() or {})["kind"] == "train"
        report = {"attempt": 1, "code": "other", "reason": "no"}
        assert third.http.post("/runs/demo/rounds/1/failure", json=report).status_code == 204
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        assert first.work() is None
        assert third.work() is None
        assert second.upload("demo", 1, file_of(2.0)).status_code == 200
        for site in (first, second, third):
            found = site.work() or {}
            assert (found.get("kind"), found.get("attempt")) == ("train", 2)


def test_the_sentence_is_that_of_the_day(database_url: str, tmp_path: Path) -> None:
    """A time of another day is told with its date."""
    with live(database_url, tmp_path / "data") as at:
        assert at.site("site-0").work() is None
        clock, assignments = at.coordinator.clock, at.coordinator.assignments
        assert assignments.recall_reason("site-0") is not None
        clock.set(clock() + dt.timedelta(days=1))
        assert assignments.recall_reason("site-0") is None


def test_another_store_on_the_same_database_knows_of_no_news(database_url: str) -> None:
    from server.database.store import Store

    engine: sa.Engine = make_engine(database_url)
    assert Store(engine).news is None
    assert Store(engine, is_only_writer=True).news == 0
    engine.dispose()
