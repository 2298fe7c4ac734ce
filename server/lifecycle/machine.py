"""(run, event, now) -> (run, effects). See ``docs/architecture.md`` for the picture."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from server.lifecycle.effects import Effect
from server.lifecycle.events import Event
from server.lifecycle.state import Round, Run

__all__ = ["Decision", "decide"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The run afterwards, and what the shell has to do.

    ``ended``: the rounds that ended in this very step and are no longer ``run.round``, because the next
    round (or attempt) opened in the same step; in their final state, so that the store can write it.
    """

    run: Run
    effects: tuple[Effect, ...]
    ended: tuple[Round, ...] = ()


def decide(run: Run, event: Event, now: dt.datetime) -> Decision:
    """What the event makes of the run.

    Raises a :class:`shared.problems.Conflict` that names event and state if the event is not
    possible now; the run is then unchanged.
    """
    raise NotImplementedError
