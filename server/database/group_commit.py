"""Many writers, few commits.

On SQLite a durable commit costs one fsync (6 ms on a busy virtual disk), and there is one writer at a
time: ten updates that arrive together would wait for ten of them. So whoever holds the lock writes for
all threads that wait meanwhile, in one transaction. If one of them fails, nothing of it stands, and each is
written once more in a savepoint of its own. Nobody is answered before the commit. PostgreSQL does the same
by itself, and better.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from server.database.installation import count_change
from server.database.session import Writing, describe, writing
from shared.problems import StorageUnavailable

__all__ = ["GroupCommit", "News"]

T = TypeVar("T")
LARGEST_GROUP = 64


class News(IntEnum):
    """What a commit may be to clients that wait; the larger one includes the smaller."""

    NONE = 0
    WORDS = 1
    """Another sentence on what they wait for."""
    WORK = 2
    """Something to do."""


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Writing], T], durable: bool, news: News) -> None:
        self.work = work
        self.durable = durable
        self.news = news
        self.settled = False
        self.value: T | None = None
        self.error: Exception | None = None

    def run(self, connection: Writing) -> None:
        self.value = self.work(connection)

    def settle(self, failure: Exception | None) -> None:
        self.error = self.error or failure
        self.settled = True

    def answer(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class GroupCommit:
    """Runs pieces of work in transactions, over one engine; safe to use from many threads.

    ``on_commit`` is called after each, with what became known by it (attributes of :class:`Writing`) and what
    it may be to clients.
    """

    def __init__(self, engine: sa.Engine, on_commit: Callable[[Writing, News], None]) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._grouped = engine.dialect.name == "sqlite"
        self._waiting: deque[_Job[object]] = deque()
        self._lock = threading.Lock()

    def write(self, work: Callable[[Writing], T], *, durable: bool = True, news: News = News.WORK) -> T:
        """What ``work`` returns, after its commit; what it raises, after its writes were undone.

        ``work`` may be called twice, the first time for nothing: it reads and writes by the connection alone.
        ``durable``: whether it must survive the death of the host, not only of the process.
        """
        if not self._grouped:
            with writing(self._engine, durable=durable) as connection:
                value = work(connection)
                if news > News.NONE and connection.has_written and not connection.events:
                    connection.changes = count_change(connection)  # by events others find the rest
            self._on_commit(connection, news)
            return value
        job = _Job(work, durable, news)
        self._waiting.append(job)  # type: ignore[arg-type]
        with self._lock:
            while not job.settled:
                self._write_group()
        return job.answer()

    def _write_group(self) -> None:
        size = min(len(self._waiting), LARGEST_GROUP)
        self._commit([self._waiting.popleft() for _ in range(size)])

    def _commit(self, jobs: Sequence[_Job[Any]]) -> None:
        failure: Exception | None = StorageUnavailable(
            f"writing to {describe(self._engine)} was interrupted", hint="Try again."
        )
        try:
            try:
                self._transact(jobs, _run_together)
            except _OneFailed:
                self._transact(jobs, _run_apart)
            failure = None
        except Exception as error:  # of the transaction, or of the only job
            failure = error
        finally:
            for job in jobs:
                job.settle(failure)

    def _transact(
        self, jobs: Sequence[_Job[Any]], run: Callable[[Writing, Sequence[_Job[Any]]], None]
    ) -> None:
        with writing(self._engine, durable=any(job.durable for job in jobs)) as connection:
            run(connection, jobs)
        self._on_commit(connection, max(job.news for job in jobs))


class _OneFailed(Exception):
    """One of several pieces of work did; its cause is found again when each runs apart."""


def _run_together(connection: Writing, jobs: Sequence[_Job[Any]]) -> None:
    for job in jobs:
        try:
            job.run(connection)
        except sa.exc.OperationalError:
            raise  # the disk or the database: nobody's work is safe
        except Exception as error:
            if len(jobs) == 1:
                raise
            raise _OneFailed from error


def _run_apart(connection: Writing, jobs: Sequence[_Job[Any]]) -> None:
    for job in jobs:
        try:
            with connection.savepoint():
                job.run(connection)
        except sa.exc.OperationalError:
            raise
        except Exception as error:
            job.error = connection.translate(error)
