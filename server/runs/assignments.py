"""What a client does next. Every method blocks on the database: call it on a thread."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

from server.clock import Clock
from server.database.store import Store
from server.lifecycle.events import AssignmentTaken, ClientSeen
from server.runs.runner import Runner
from shared.problems import Conflict
from shared.schemas import Assignment, Train

__all__ = ["Assignments"]

TRIES = 5
ASK_AGAIN_SECONDS = 60.0
"""A client that does not send a lost update again is asked for it once in this time."""


@dataclass(frozen=True)
class Assignments:
    """Reads assignments from the database, and notes that a client has one before it is told of it."""

    store: Store
    runner: Runner
    clock: Clock
    _asked_again: dict[str, float] = field(default_factory=dict)  # by client, when

    def take_next(self, client: str) -> Assignment | None:
        """The client's next assignment, or None. One to train is noted as taken before it is given.

        The same assignment is given again until it is done, so that a worker that was killed loses nothing.
        """
        for _ in range(TRIES):
            silent = self.clock.monotonic() - self._asked_again.get(client, -math.inf)
            assignment = self.store.work_for(client, lost_too=silent >= ASK_AGAIN_SECONDS)
            if not isinstance(assignment, Train):
                return assignment
            if assignment.again:  # its round is closed: nothing moves
                self._asked_again[client] = self.clock.monotonic()
                return assignment
            event = AssignmentTaken(client, assignment.round, assignment.attempt)
            try:
                self.runner.commit(assignment.run, event, actor=client)
            except Conflict:
                continue  # the round was closed in between: ask again
            return assignment
        return None  # the round is changing all the time: the next change wakes the client

    def explain_wait(self, client: str) -> str:
        """One sentence: what a client without an assignment is waiting for."""
        return self.store.waiting_for(client, self.clock())

    def mark_returned(self, client: str) -> None:
        """A client that had missed a deadline is heard of again, so it may be drawn again."""
        for run in self.store.away_in(client):
            with contextlib.suppress(Conflict):  # another poll of it was faster, or the run has ended
                self.runner.commit(run, ClientSeen(client), actor=client)
