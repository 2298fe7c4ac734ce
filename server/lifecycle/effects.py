"""What is to be done after a decision is committed. Plain values, compared in tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

__all__ = ["KINDS", "Aggregate", "Effect", "Kind", "Record", "Wake"]

Kind = Literal[
    "client_enrolled",
    "client_refused",  # not admitted, or by the operator
    "client_approved",  # its size, by the operator
    "client_declined",
    "client_finished",
    "client_left",
    "client_away",  # missed a deadline: not drawn until it polls again
    "client_returned",
    "discrepancy_received",
    "run_started",
    "run_paused",
    "run_resumed",
    "run_stopped",
    "run_rewound",  # to an earlier round's model
    "run_changed",  # its configuration, where that touches no past round
    "run_completed",
    "run_stopped_early",  # the score has not become better for a while
    "run_waiting",  # something keeps it from going on
    "round_opened",
    "deadline_moved",  # of a round or a wait: the coordinator was away for a while, or its clock was set
    "round_closed",  # nobody is waited for any more, enough updates have arrived
    "round_completed",
    "round_abandoned",
    "round_without_weight",  # no update had weight; the old model is kept
    "aggregation_delayed",
    "aggregation_failed",
    "assignment_taken",
    "update_received",
    "update_rejected",  # left out of the aggregation
    "failure_reported",
    "participant_timed_out",
    "step_opened",  # of a secure sum
    "step_answered",
]

KINDS: Final[tuple[str, ...]] = get_args(Kind)
"""Every kind of record that a transition can leave in the event log."""


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of the append-only event log, written in the same transaction as the new state."""

    kind: str
    client: str | None = None
    round: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Start the aggregation of this attempt, off the event loop."""

    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Wake:
    """These clients' long polls may have an answer now."""

    clients: tuple[str, ...]


Effect = Record | Aggregate | Wake
