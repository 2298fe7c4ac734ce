"""Runs as this process knows them: what a step has written need not be read again by the next one.

What is known is believed only while the run's row, locked by the step, bears the same version: every step
raises it, also one of another process. It becomes known to others with the commit, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import sqlalchemy as sa
from cachetools import LRUCache

from server.database.configs import Configs, no_such_run
from server.database.session import Writing
from server.database.step.facts import AggregationFacts, UpdateFacts
from server.database.step.load import Snapshot, load
from server.database.tables import runs
from server.lifecycle.events import AggregationFinished, AssignmentTaken, StepAnswered, UpdateReceived
from server.lifecycle.state import Run

if TYPE_CHECKING:
    from server.database.step.change import Change

__all__ = ["KnownRuns"]

REMEMBERED = 256
_VERSION = (
    sa.select(runs.c.version)
    .where(runs.c.run == sa.bindparam("of_run", type_=sa.String))
    .with_for_update(key_share=True)
)


class KnownRuns:
    """By run, how the last commit left it. Used from several threads.

    ``is_only_writer``: no other process moves runs, so there is no version to be asked for.
    """

    def __init__(self, configs: Configs, *, is_only_writer: bool = False) -> None:
        self.configs = configs
        self._is_only_writer = is_only_writer
        self._known: LRUCache[str, Snapshot] = LRUCache(REMEMBERED)
        self._lock = threading.Lock()

    def find(self, run: str) -> Snapshot | None:
        """As the last commit of this process left it; another process may have moved it since."""
        with self._lock:
            return self._known.get(run)

    def lock(self, connection: Writing, run: str) -> Snapshot:
        """The run now; others wait with it until the transaction ends. Raises :class:`NotFound`."""
        is_mine = run in connection.pending  # moved or read by this transaction, which holds the lock
        found = connection.pending[run] if is_mine else self.find(run)
        if found is not None and (is_mine or self._is_only_writer):
            return found
        if found is not None:
            version = connection.select(_VERSION, {"of_run": run}).scalar()
            if version is None:
                raise no_such_run(run)  # and none of this name will be again
            if version == found.version:
                return found
        found = load(connection, run, self.configs, lock=True)
        connection.pending[run] = found if _can_follow(found.run) else None
        return found

    def follow(self, connection: Writing, change: Change) -> None:
        """The change is written: from its commit on the run is known as it left it, or has to be read."""
        connection.pending[change.run] = _apply(change)

    def publish(self, pending: Mapping[str, Snapshot | None]) -> None:
        """A transaction is committed: ``pending`` is what it made of each run that it touched."""
        with self._lock:
            for run, found in pending.items():
                if found is None:
                    self._known.pop(run, None)
                else:
                    self._known[run] = found

    def forget(self, run: str) -> None:
        """What was known of it turned out to be of the past."""
        with self._lock:
            self._known.pop(run, None)


def _can_follow(run: Run) -> bool:
    """Scores come in beside the steps."""
    return not run.policy.needs_scores


def _apply(change: Change) -> Snapshot | None:
    """What reading the run would give now; None for the rarer steps, after which it is read."""
    before, run = change.before, change.decision.run
    known, current = before.run.round, run.round
    common = AssignmentTaken | UpdateReceived | StepAnswered | AggregationFinished
    is_common = isinstance(change.event, common)
    if not is_common or not _can_follow(run) or current is None or run.reason != before.run.reason:
        return None
    is_same = known is not None and (known.number, known.attempt) == (current.number, current.attempt)
    if isinstance(change.event, AggregationFinished) and is_same:
        return None  # the ledger's reasons are the participants' now
    facts, updates = change.facts, dict(before.updates) if is_same else {}
    troubled, start_model = before.troubled, before.start_model
    if isinstance(facts, UpdateFacts):
        troubled = troubled - {change.client}
        if is_same:
            updates[change.client] = facts.digest
    if isinstance(facts, AggregationFacts) and run.completed_rounds != before.run.completed_rounds:
        start_model = start_model if facts.travelling else facts.model
    return replace(
        before,
        run=run,
        version=before.version + 1,
        updates=updates,
        troubled=troubled,
        start_model=start_model,
    )
