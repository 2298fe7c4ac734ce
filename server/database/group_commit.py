"""Many writers, few commits.

On SQLite a durable commit costs one fsync (6 ms on a busy virtual disk), and there is one writer at a
time: ten updates that arrive together would wait for ten of them. So whoever holds the lock writes for
all threads that wait meanwhile, in one transaction, each in a savepoint of its own. Nobody is answered
before the commit. PostgreSQL does the same by itself, and better.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa

from server.database.session import Writing, describe, writing
from shared.problems import StorageUnavailable

__all__ = ["GroupCommit"]

T = TypeVar("T")
LARGEST_GROUP = 64


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Writing], T], durable: bool) -> None:
        self.work = work
        self.durable = durable
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
    """Runs pieces of work in transactions, over one engine; safe to use from many threads."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._grouped = engine.dialect.name == "sqlite"
        self._waiting: deque[_Job[object]] = deque()
        self._lock = threading.Lock()

    def write(self, work: Callable[[Writing], T], *, durable: bool = True) -> T:
        """What ``work`` returns, after its commit; what it raises, after its writes were undone.

        ``durable``: whether it must survive the death of the host, not only of the process.
        """
        if not self._grouped:
            with writing(self._engine, durable=durable) as connection:
                return work(connection)
        job = _Job(work, durable)
        self._waiting.append(job)  # type: ignore[arg-type]
        with self._lock:
            while not job.settled:
                self._write_group()
        return job.answer()

    def _write_group(self) -> None:
        size = min(len(self._waiting), LARGEST_GROUP)
        jobs = [self._waiting.popleft() for _ in range(size)]
        failure: Exception | None = StorageUnavailable(
            f"writing to {describe(self._engine)} was interrupted", hint="Try again."
        )
        try:
            with writing(self._engine, durable=any(job.durable for job in jobs)) as connection:
                _run(connection, jobs)
            failure = None
        except Exception as error:  # of the transaction, or of the only job
            failure = error
        finally:
            for job in jobs:
                job.settle(failure)


def _run(connection: Writing, jobs: list[_Job[object]]) -> None:
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
