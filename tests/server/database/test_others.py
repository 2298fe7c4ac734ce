"""What others have committed on one PostgreSQL is told from what this process has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from server.database import others
from server.database.session import make_engine
from server.database.store import Store
from server.database.tables import blobs
from tests.helpers.databases import Postgres

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)


@pytest.fixture
def stores(postgres: Postgres) -> Iterator[tuple[Store, Store]]:
    """Of two processes, the first of which has looked once."""
    url = postgres.fresh()
    engines = make_engine(url), make_engine(url)
    here, there = (Store(engine) for engine in engines)
    here.database_id(NOW)
    here.look_for_others(NOW)
    yield here, there
    for engine in engines:
        engine.dispose()
    postgres.recycle(url)


def has_news(store: Store) -> bool:
    before = store.news, store.news_of_work
    store.look_for_others(NOW)
    return (store.news, store.news_of_work) != before


def test_what_another_commits_is_news_once(stores: tuple[Store, Store]) -> None:
    here, there = stores
    assert not has_news(here)
    there.register("north", "0" * 64, "1", NOW)
    assert has_news(here)
    assert not has_news(here)


def test_what_this_process_commits_is_none_at_a_look(stores: tuple[Store, Store]) -> None:
    here, there = stores
    here.register("north", "0" * 64, "1", NOW)
    assert not has_news(here)
    there.register("south", "1" * 64, "1", NOW)
    here.register("west", "2" * 64, "1", NOW)
    assert has_news(here), "between two of its own"
    assert not has_news(here)


def test_a_change_without_an_event_is_news_to_others(stores: tuple[Store, Store]) -> None:
    here, there = stores
    with here.engine.begin() as connection:
        connection.execute(blobs.insert().values(digest="0" * 64, bytes=7, created_at=NOW))
    here.note_blob_fault("0" * 64, "is missing", NOW)
    assert not has_news(here)
    there.note_blob_fault("0" * 64, None, NOW)
    assert has_news(here)
    assert not has_news(here)
    there.note_blob_fault("0" * 64, None, NOW)  # for the second time
    here.note_blob_fault("0" * 64, "is missing", NOW)
    there.note_blob_fault("0" * 64, None, NOW)
    assert has_news(here)


def test_what_was_seen_and_who_reads_is_no_news(stores: tuple[Store, Store]) -> None:
    here, there = stores
    there.register("north", "0" * 64, "1", NOW)
    assert has_news(here)
    there.mark_seen({"north": NOW})
    there.note_alive(NOW, lambda before: dt.timedelta(0))
    there.add_audit_entry("run_read", actor="viewer", now=NOW)
    assert not has_news(here)


def test_what_was_undone_is_no_news_of_this_process(stores: tuple[Store, Store]) -> None:
    """The number that it had counted is another one's then."""
    here, there = stores
    with here.engine.begin() as connection:
        connection.execute(blobs.insert().values(digest="0" * 64, bytes=7, created_at=NOW))

    class Undone(Exception):
        pass

    def fail(_connection: sa.Connection) -> None:
        raise Undone

    sa.event.listen(here.engine, "commit", fail)
    with pytest.raises(Undone):
        here.note_blob_fault("0" * 64, "is missing", NOW)
    sa.event.remove(here.engine, "commit", fail)
    there.note_blob_fault("0" * 64, "is missing", NOW)
    assert has_news(here)


@pytest.mark.parametrize("call", ["revoke", "erase_client"])
def test_tokens_are_doubted_when_a_client_is_gone(stores: tuple[Store, Store], call: str) -> None:
    here, there = stores
    there.register("north", "0" * 64, "1", NOW)
    assert not here.look_for_others(NOW).concerns_tokens
    getattr(there, call)("north", "admin", NOW)
    assert here.look_for_others(NOW).concerns_tokens
    assert not here.look_for_others(NOW).concerns_tokens


def test_ended_tokens_are_listed(stores: tuple[Store, Store]) -> None:
    here, there = stores
    there.register("north", "0" * 64, "1", NOW)
    there.revoke("north", "admin", NOW)
    assert here.look_for_others(NOW).ended == [("client", "north")]
    assert here.look_for_others(NOW + dt.timedelta(seconds=1)).ended == []


def test_nothing_is_believed_for_long_without_a_look(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = stores
    assert [here.news is None, there.news is None] == [False, True]
    monkeypatch.setattr(others, "TRUSTED_SECONDS", 0.0)
    assert [here.news, here.news_of_work] == [None, None]
