"""Many writers, few commits.

On SQLite a durable commit costs one fsync (6 ms on a busy virtual disk), and there is one writer at a
time: ten updates that arrive together would wait for ten of them. So whoever holds the lock writes for
all threads that wait meanwhile, in one transaction, each in a savepoint of its own. Nobody is answered
before the commit. PostgreSQL does the same by itself, and better.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from server.database.session import Writing, describe, writing
from shared.problems import StorageUnavailable

__all__ = ["GroupCommit"]

T = TypeVar("T")
LARGEST_GROUP = 64


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Writing], T], durable: bool, is_news: bool) -> None:
        self.work = work
        self.durable = durable
        self.is_news = is_news
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

    ``on_commit`` is called after each, with what became known by it (:attr:`Writing.pending`) and whether
    anything in it was news.
    """

    def __init__(self, engine: sa.Engine, on_commit: Callable[[Mapping[str, Any], bool], None]) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._grouped = engine.dialect.name == "sqlite"
        self._waiting: deque[_Job[object]] = deque()
        self._lock = threading.Lock()

    def write(self, work: Callable[[Writing], T], *, durable: bool = True, is_news: bool = True) -> T:
        """What ``work`` returns, after its commit; what it raises, after its writes were undone.

        ``durable``: whether it must survive the death of the host, not only of the process. ``is_news``:
        whether a client that has no work may have some after it, or waits for something else.
        """
        if not self._grouped:
            with writing(self._engine, durable=durable) as connection:
                value = work(connection)
            self._on_commit(connection.pending, is_news)
            return value
        job = _Job(work, durable, is_news)
        self._settle([job])
        return job.answer()

    def write_each(
        self, works: Sequence[Callable[[Writing], T]], *, durable: bool = True
    ) -> list[T | Exception]:
        """What each of them returns or raises, after the commit that they share with one another."""
        jobs = [_Job(work, durable, True) for work in works]
        if self._grouped:
            self._settle(jobs)
        else:
            self._commit(jobs)
        return [job.error if job.error is not None else job.answer() for job in jobs]

    def _settle(self, jobs: Sequence[_Job[T]]) -> None:
        self._waiting.extend(jobs)  # type: ignore[arg-type]
        with self._lock:
            while not all(job.settled for job in jobs):
                self._write_group()

    def _write_group(self) -> None:
        size = min(len(self._waiting), LARGEST_GROUP)
        self._commit([self._waiting.popleft() for _ in range(size)])

    def _commit(self, jobs: Sequence[_Job[Any]]) -> None:
        failure: Exception | None = StorageUnavailable(
            f"writing to {describe(self._engine)} was interrupted", hint="Try again."
        )
        try:
            with writing(self._engine, durable=any(job.durable for job in jobs)) as connection:
                _run(connection, jobs)
            self._on_commit(connection.pending, any(job.is_news for job in jobs))
            failure = None
        except Exception as error:  # of the transaction, or of the only job
            failure = error
        finally:
            for job in jobs:
                job.settle(failure)


def _run(connection: Writing, jobs: Sequence[_Job[Any]]) -> None:
    if len(jobs) == 1:
        jobs[0].run(connection)
        return
    for job in jobs:
        try:
            with connection.savepoint():
                job.run(connection)
        except sa.exc.OperationalError:
            raise  # the disk or the database: nobody's work is safe
        except Exception as error:
            job.error = error
