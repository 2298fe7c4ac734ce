"""What may be done with a run and its clients, and in which words. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from server.pages.contexts import FormField, Offer
from shared.schemas import RunStatus, RunView

__all__ = ["ACTIONS", "REASON", "ROUND", "Action", "list_offers", "run_command"]

OPEN = frozenset(status for status in RunStatus if not status.is_terminal)
GOING = frozenset(status for status in RunStatus if status.is_going)
REASON = FormField(name="reason", label="Reason, for the run's page")

ROUND = FormField(name="round", label="Round to go back to (0: the initial model)", kind="number")


@dataclass(frozen=True, slots=True)
class Action:
    """``statuses``: of the runs with which it is possible; ``is_final``: a box has to be ticked first."""

    label: str
    explanation: str
    statuses: frozenset[RunStatus]
    fields: tuple[FormField, ...] = ()
    is_final: bool = False

    @property
    def form(self) -> tuple[FormField, ...]:
        tick = FormField(name="sure", label="I am sure", kind="tick")
        return (*self.fields, tick) if self.is_final else self.fields


ACTIONS: Mapping[str, Action] = {
    "start": Action(
        "Start now",
        "The run starts with the trainers that are ready, without waiting for more.",
        frozenset({RunStatus.ENROLLING}),
    ),
    "pause": Action(
        "Pause",
        "No further round opens. The open one goes on and may complete.",
        GOING,
        (REASON,),
    ),
    "resume": Action("Resume", "The run goes on where it was paused.", frozenset({RunStatus.PAUSED})),
    "rewind": Action(
        "Go back",
        "The run goes back to an earlier round's model and on from there. The open attempt is abandoned, "
        "later rounds count no more.",
        GOING | {RunStatus.PAUSED},
        (ROUND, REASON),
        is_final=True,
    ),
    "stop": Action(
        "Stop",
        "The run ends for good. The open round is abandoned, the newest model stays, all clients are told.",
        OPEN,
        (REASON,),
        is_final=True,
    ),
}
"""By the word of the command and of the address."""


def run_command(action: str, run: str, **options: str) -> str:
    """``feddisco run stop demo --reason 'too slow'``, to be pasted into a shell."""
    words = ["feddisco", "run", action, run]
    for name, value in options.items():
        words += [f"--{name}", value]
    return shlex.join(words)


def list_offers(run: RunView) -> tuple[Offer, ...]:
    """What is possible with a run in its present status."""
    return tuple(
        Offer(
            label=action.label,
            address=f"/runs/{run.run}/do/{name}",
            command=run_command(name, run.run, **({"round": "N"} if ROUND in action.fields else {})),
        )
        for name, action in ACTIONS.items()
        if run.status in action.statuses
    )
