"""Runs that have ended are put away or deleted; clients that withdraw are erased. On a thread."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from server.background import repeat
from server.database.clients import no_such_client
from server.database.store import Store
from server.removals import Removals, RemovedRun
from server.runs.enrolment import Enrolments
from server.runs.runner import Runner
from server.threads import Threads
from shared.problems import NotFound
from shared.schemas import DeletedRun, Erasure

__all__ = ["Removal"]

PENDING_SECONDS = 60.0

log = logging.getLogger("feddisco")


@dataclass(frozen=True)
class Removal:
    """What becomes of a run after its end."""

    store: Store
    runner: Runner
    enrolments: Enrolments
    removals: Removals
    clock: Callable[[], dt.datetime]
    erased: set[str] = field(default_factory=set)
    """Clients of the list, by token, that this process knows to be done with."""

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

    def erase(self, client: str, actor: str) -> Erasure:
        """Erase a client that withdraws: token, name, words, files. Its numbers in ledgers stay, nameless.

        An update that an open round counts is waited for; then it is done by itself. Raises NotFound.
        """
        token_hash = self.store.token_hash_of(client)
        if token_hash is None:
            raise no_such_client(client)
        self.removals.add_client(token_hash, actor, self.clock())
        self.enrolments.revoke(client, actor)
        return self._erase(client, actor)

    def _erase(self, client: str, actor: str) -> Erasure:
        name = self.store.erase_client(client, actor, self.clock())
        if name is None:
            waits = tuple(f"{found.run}, round {found.round}" for found in self.store.open_updates(client))
            return Erasure(name=None, waiting_for=waits)
        log.info("a client was erased by %s and is %s now", actor, name)
        self.runner.forget_client()
        self.runner.collect_unneeded()
        return Erasure(name=name)

    def erase_pending(self) -> None:
        """Erase those that the list names and the database still knows, unless their updates are open."""
        listed = self.removals.read_clients()
        for token_hash in listed.keys() - self.erased:
            with suppress(NotFound):  # another coordinator was faster
                view = self.store.client_by_token_hash(token_hash)
                if view is not None and view.revoked_at is None:  # it may wait for its last update for days
                    self.enrolments.revoke(view.client, listed[token_hash])
                if view is not None and self._erase(view.client, listed[token_hash]).name is None:
                    continue
            self.erased.add(token_hash)

    async def run(self, threads: Threads) -> None:
        """Until cancelled: erase whose last open update has been counted."""
        await repeat(
            PENDING_SECONDS, partial(threads.run_long, self.erase_pending), "cannot erase clients now"
        )

    def apply(self) -> int:
        """Remove what the list names and the database still has; how many runs those were."""
        self.erase_pending()
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
