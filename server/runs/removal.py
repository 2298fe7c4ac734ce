"""Runs that have ended are put away, or deleted with their files. On a thread."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from server.database.store import Store
from server.removals import Removals, RemovedRun
from server.runs.runner import Runner
from shared.problems import NotFound
from shared.schemas import DeletedRun

__all__ = ["Removal"]

log = logging.getLogger("feddisco")


@dataclass(frozen=True)
class Removal:
    """What becomes of a run after its end."""

    store: Store
    runner: Runner
    removals: Removals
    clock: Callable[[], dt.datetime]

    def archive(self, run: str, archived: bool, actor: str) -> None:
        """Put the run away, or back. Raises NotFound, and IllegalTransition for a run that has not ended."""
        if self.store.archive_run(run, archived, actor=actor, now=self.clock()):
            self.runner.announce(run)

    def delete(self, run: str, reason: str, actor: str) -> DeletedRun:
        """Delete the run and the files that only it needs; the record of it.

        Those put in the last minutes follow soon. Raises as :meth:`archive`.
        """
        created_at, now = self.store.find_ended(run), self.clock()
        self.removals.add_run(RemovedRun(run, created_at, actor, reason), now)
        deleted = self.store.delete_run(run, reason=reason, actor=actor, now=now)
        log.info("run %s was deleted by %s", run, actor)
        self.runner.forget(run)
        self.runner.collect_unneeded()
        return deleted

    def apply(self) -> int:
        """Delete what the list names and the database still has; how many runs those were."""
        known = [removed for removed in self.removals.read_runs() if self._is_there(removed)]
        for removed in known:
            with suppress(NotFound):  # another coordinator, which starts at the same moment, was faster
                self.store.delete_run(
                    removed.run, reason=removed.reason, actor=removed.actor, now=self.clock(), even_open=True
                )
                log.warning("run %s had been deleted by %s: now it is", removed.run, removed.actor)
        return len(known)

    def _is_there(self, removed: RemovedRun) -> bool:
        return self.store.run_creation(removed.run) == removed.created_at
