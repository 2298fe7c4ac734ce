"""A decision on its way into the database."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from server.database.step.facts import Facts
from server.database.step.load import Snapshot
from server.lifecycle.events import Event
from server.lifecycle.machine import Decision

__all__ = ["Change"]


@dataclass(frozen=True, slots=True)
class Change:
    """A decision, what led to it and who.

    ``takers``: who took their assignments together; ``event`` is that of the first of them.
    """

    before: Snapshot
    decision: Decision
    event: Event
    facts: Facts | None
    actor: str
    now: dt.datetime
    takers: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        return self.decision.run.id

    @property
    def client(self) -> str:
        """Whom the event is about; empty for events about the run."""
        return getattr(self.event, "client", "")

    @property
    def clients(self) -> tuple[str, ...]:
        """The same, of all that happened together."""
        return self.takers or (self.client,)
