"""Who was seen is written seldom, together, without waiting for the disk; losing it loses nothing else."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from server.database.session import Writing
from server.database.store import Store
from server.runs.presence import CHECK_SECONDS, Presence
from server.threads import Threads
from shared.problems import StorageUnavailable
from tests.helpers.clocks import clock_by
from tests.helpers.store_play import NOW, Story, later

CLIENTS = [f"c{place:02}" for place in range(30)]


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2)
    yield threads
    threads.close()


class Commits:
    """Whether each commit of what was written waits for the disk, as the database says just before it."""

    def __init__(self, engine: sa.Engine) -> None:
        self.durable: list[bool] = []
        self._question, self._yes = {
            "sqlite": ("PRAGMA synchronous", "2"),
            "postgresql": ("SHOW synchronous_commit", "on"),
        }[engine.dialect.name]
        sa.event.listen(engine, "commit", self._note)

    def _note(self, connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if options.get("postgresql_readonly") or options.get("isolation_level") == "AUTOCOMMIT":
            return
        self.durable.append(str(connection.exec_driver_sql(self._question).scalar_one()) == self._yes)


def last_seen(store: Store) -> dict[str, dt.datetime | None]:
    return {client.client: client.last_seen_at for client in store.clients()}


def test_many_clients_are_marked_in_one_commit_that_does_not_wait_for_the_disk(
    engine: sa.Engine, threads: Threads
) -> None:
    story = Story(engine)
    story.register(*CLIENTS)
    now = NOW
    presence = Presence(story.store, threads, clock_by(lambda: now))
    for seconds in range(3):
        now = later(seconds)
        for client in CLIENTS:
            presence.note(client)
    commits = Commits(engine)
    presence.flush()
    assert commits.durable == [False]
    assert last_seen(story.store) == dict.fromkeys(CLIENTS, later(2))
    presence.flush()
    assert commits.durable == [False], "nobody was seen since: nothing to write"
    story.store.record("update_refused", actor="a", now=NOW)
    assert commits.durable == [False, True]


def test_marks_wait_in_line_with_other_writers_and_their_failure_is_their_own(engine: sa.Engine) -> None:
    """Behind a writer that holds the lock queue an event and a mark that the database refuses."""
    story = Story(engine)
    story.register("a", "b")
    store = story.store
    entered, go_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def hold(connection: Writing) -> None:
        entered.set()
        assert go_on.wait(30)

    def mark() -> None:
        naive = NOW.replace(tzinfo=None)
        try:
            store.mark_seen({"a": later(1), "b": naive})
        except sa.exc.StatementError as error:
            errors.append(error)

    jobs = [
        threading.Thread(target=store._writer.write, args=(hold,)),
        threading.Thread(target=mark),
        threading.Thread(target=store.record, args=("update_refused",), kwargs={"actor": "a", "now": NOW}),
    ]
    jobs[0].start()
    assert entered.wait(30)
    for job in jobs[1:]:
        job.start()
    go_on.set()
    for job in jobs:
        job.join(timeout=60)
    assert [str(error.orig) for error in errors if isinstance(error, sa.exc.StatementError)]
    assert last_seen(store) == {"a": None, "b": None}
    assert store.events()[-1].kind == "update_refused"


def test_a_lost_mark_loses_nothing_else(engine: sa.Engine, threads: Threads) -> None:
    """The database is away during one flush: that one is gone, the next one is written."""
    story = Story(engine)
    story.register("a")
    engine.dispose()
    away = True

    def connect(dialect: sa.Dialect, *_: object) -> None:
        if away:
            assert dialect.dbapi is not None
            raise dialect.dbapi.OperationalError("the network is gone")

    sa.event.listen(engine, "do_connect", connect)
    now = NOW
    presence = Presence(story.store, threads, clock_by(lambda: now))
    presence.note("a")
    with pytest.raises(StorageUnavailable, match="the network is gone"):
        presence.flush()
    away, now = False, later(9)
    presence.flush()
    assert last_seen(story.store) == {"a": None}
    presence.note("a")
    presence.flush()
    assert last_seen(story.store) == {"a": later(9)}
    assert story.kinds(None) == ["client_registered"]


def test_a_poll_looks_at_most_every_few_seconds_unless_told_that_it_is_late(
    engine: sa.Engine, threads: Threads
) -> None:
    now = NOW
    presence = Presence(Store(engine), threads, clock_by(lambda: now))
    assert presence.note("a")
    assert not presence.note("a")
    presence.forget("a")
    assert presence.note("a")
    now = later(CHECK_SECONDS)
    assert presence.note("a")
