"""The rules of a run, as tables. The engine obeys them, the picture in ``docs/`` is drawn from them.

Four kinds of state: a *run* has *enrolments* and at most one open *round*; a round has *participants*.
Every event is about one run, and may move several of the four at once.

1. ``ALLOWED`` says in which run statuses an event is possible at all. What it needs beyond that
   (the round is the current one, the client takes part in it) is checked by the event's handler.
2. ``*_MOVES`` say which status may follow which, and because of which events. A move that is not in
   its table is a bug of the engine, never of a caller, and stops the transaction.
3. Statuses without a way out are final: an abandoned round is never repaired but drawn again, with the
   same number and the next attempt; a completed or stopped run stays so.
4. Pausing keeps new rounds from opening; it does not touch the open one. So the two graphs of run
   and round are independent, except that a run that stops abandons its open round.
5. A secure round collects in steps (``shared.secure.coordinator``), each with a deadline: who misses one
   before its upload drops out; whose upload is in the sum stays in it.
6. Progress: every participant of a collecting round has finished, or the deadline is still to come. So a
   running run moves on by itself. One that does not (``views.find_obstacle``) is waiting, says why, and
   pauses in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    AssignmentTaken,
    ChangeRequested,
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    DiscrepancyReceived,
    EnrolmentApproved,
    EnrolmentRefused,
    EvaluationReceived,
    Event,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StartRequested,
    StepAnswered,
    StopRequested,
    TimePassed,
    UpdateReceived,
)
from shared.schemas import EnrolmentStatus, ParticipantStatus, RoundStatus, RunStatus

__all__ = [
    "ALLOWED",
    "ENROLMENT_MOVES",
    "PARTICIPANT_MOVES",
    "ROUND_MOVES",
    "RUN_MOVES",
    "Moves",
    "events_allowed",
]

S = TypeVar("S", bound=StrEnum)
Causes = tuple[type[Event], ...]
Moves = Mapping[tuple[S | None, S], Causes]
"""(before, after) -> the events that can cause it; before None: it is created."""

_OPEN: Final = frozenset(status for status in RunStatus if not status.is_terminal)
_GOING: Final = frozenset(status for status in RunStatus if status.is_going)
_AT_WORK: Final = _GOING | {RunStatus.PAUSED}
_ALWAYS: Final = frozenset(RunStatus)

ALLOWED: Final[Mapping[type[Event], frozenset[RunStatus]]] = {
    ClientEnrolled: _OPEN,
    EnrolmentApproved: _OPEN,
    EnrolmentRefused: _OPEN,
    ClientDeclined: _ALWAYS,  # an evaluator may fail at the last model, after the end
    ClientLeft: _ALWAYS,  # after the end: how a client confirms that it has seen it
    ClientSeen: _ALWAYS,
    DiscrepancyReceived: _OPEN,
    StartRequested: frozenset({RunStatus.ENROLLING}),
    PauseRequested: _GOING,
    ResumeRequested: frozenset({RunStatus.PAUSED}),
    StopRequested: _OPEN,
    RewindRequested: _AT_WORK,
    ChangeRequested: _ALWAYS,  # after the end: what is kept
    AssignmentTaken: _AT_WORK,
    UpdateReceived: _AT_WORK,
    StepAnswered: _AT_WORK,
    FailureReported: _AT_WORK,
    TimePassed: _ALWAYS,
    CoordinatorReturned: _ALWAYS,  # moves a deadline, and no status
    EvaluationReceived: _ALWAYS,  # the initial model is scored before the start, the last one after the end
    AggregationFinished: _AT_WORK,
    AggregationDelayed: _AT_WORK,
    AggregationFailed: _AT_WORK,
}

# the events after which a client takes no part any more
_LEAVING: Final[Causes] = (ClientDeclined, ClientLeft, EnrolmentRefused)
# the events after which a collecting round may have nobody left to wait for
_CLOSING: Final[Causes] = (UpdateReceived, StepAnswered, FailureReported, *_LEAVING, TimePassed)
# the events after which one trainer more is ready
_READYING: Final[Causes] = (ClientEnrolled, EnrolmentApproved, DiscrepancyReceived)

# the events after which a run may have come to its end: with a score that was waited for, or without it
_ENDING: Final[Causes] = (
    ChangeRequested,
    AggregationFinished,
    EvaluationReceived,
    ClientDeclined,
    ClientLeft,
    EnrolmentRefused,
)

# the events after which a run may be unable to go on, or able to again
_MOVING: Final[Causes] = (
    *_CLOSING,
    *_READYING,
    ClientSeen,
    ResumeRequested,
    RewindRequested,
    ChangeRequested,
    EvaluationReceived,
    AggregationFinished,
    AggregationDelayed,
    AggregationFailed,
)
# the events after which a run pauses: asked for, after too many attempts, or after too long a wait
_PAUSING: Final[Causes] = (PauseRequested, *_CLOSING, AggregationFinished, AggregationFailed)

RUN_MOVES: Final[Moves[RunStatus]] = {
    (RunStatus.ENROLLING, RunStatus.RUNNING): (StartRequested, *_READYING),
    (RunStatus.RUNNING, RunStatus.WAITING): _MOVING,
    (RunStatus.WAITING, RunStatus.RUNNING): _MOVING,
    **{(status, RunStatus.PAUSED): _PAUSING for status in RunStatus if status.is_going},
    (RunStatus.PAUSED, RunStatus.RUNNING): (ResumeRequested,),
    **{(status, RunStatus.COMPLETED): _ENDING for status in RunStatus if status in _AT_WORK},
    **{(status, RunStatus.STOPPED): (StopRequested,) for status in RunStatus if status in _OPEN},
}

ROUND_MOVES: Final[Moves[RoundStatus]] = {
    (None, RoundStatus.COLLECTING): (
        StartRequested,
        ResumeRequested,
        RewindRequested,
        ChangeRequested,
        ClientSeen,
        EvaluationReceived,
        *_READYING,
        *_CLOSING,
        AggregationFinished,
        AggregationFailed,
    ),
    (RoundStatus.COLLECTING, RoundStatus.AGGREGATING): _CLOSING,
    (RoundStatus.COLLECTING, RoundStatus.ABANDONED): (*_CLOSING, StopRequested, RewindRequested),
    (RoundStatus.AGGREGATING, RoundStatus.COMPLETED): (AggregationFinished,),
    (RoundStatus.AGGREGATING, RoundStatus.ABANDONED): (
        AggregationFinished,
        AggregationFailed,
        StopRequested,
        RewindRequested,
    ),
}

PARTICIPANT_MOVES: Final[Moves[ParticipantStatus]] = {
    (None, ParticipantStatus.INVITED): ROUND_MOVES[None, RoundStatus.COLLECTING],
    (ParticipantStatus.INVITED, ParticipantStatus.TRAINING): (AssignmentTaken,),
    (ParticipantStatus.INVITED, ParticipantStatus.UPLOADED): (UpdateReceived,),
    (ParticipantStatus.TRAINING, ParticipantStatus.UPLOADED): (UpdateReceived,),
    (ParticipantStatus.INVITED, ParticipantStatus.FAILED): (FailureReported, *_LEAVING),
    (ParticipantStatus.TRAINING, ParticipantStatus.FAILED): (FailureReported, *_LEAVING),
    (ParticipantStatus.INVITED, ParticipantStatus.TIMED_OUT): (TimePassed,),
    (ParticipantStatus.TRAINING, ParticipantStatus.TIMED_OUT): (TimePassed,),
    (ParticipantStatus.UPLOADED, ParticipantStatus.AGGREGATED): (AggregationFinished,),
    (ParticipantStatus.UPLOADED, ParticipantStatus.REJECTED): (AggregationFinished,),
}

_PRESENT: Final = tuple(status for status in EnrolmentStatus if status.is_present)
_GONE: Final = tuple(status for status in EnrolmentStatus if status.is_gone)
_ENTRIES: Final = (
    EnrolmentStatus.AWAITING_APPROVAL,
    EnrolmentStatus.AWAITING_DISCREPANCY,
    EnrolmentStatus.READY,
    EnrolmentStatus.REFUSED,
)

ENROLMENT_MOVES: Final[Moves[EnrolmentStatus]] = {
    **{(None, entry): (ClientEnrolled,) for entry in _ENTRIES},
    (None, EnrolmentStatus.DECLINED): (ClientDeclined,),
    (EnrolmentStatus.AWAITING_APPROVAL, EnrolmentStatus.AWAITING_DISCREPANCY): (EnrolmentApproved,),
    (EnrolmentStatus.AWAITING_APPROVAL, EnrolmentStatus.READY): (EnrolmentApproved,),
    (EnrolmentStatus.AWAITING_DISCREPANCY, EnrolmentStatus.READY): (DiscrepancyReceived,),
    (EnrolmentStatus.READY, EnrolmentStatus.AWAY): (TimePassed,),
    (EnrolmentStatus.AWAY, EnrolmentStatus.READY): (ClientSeen,),
    **{(status, EnrolmentStatus.LEFT): (ClientLeft,) for status in _PRESENT},
    **{(status, EnrolmentStatus.DECLINED): (ClientDeclined,) for status in _PRESENT},
    **{(status, EnrolmentStatus.FINISHED): (ClientDeclined, ClientLeft) for status in _PRESENT},
    **{(status, EnrolmentStatus.REFUSED): (EnrolmentRefused,) for status in _PRESENT},
    **{(status, entry): (ClientEnrolled,) for status in _GONE for entry in _ENTRIES},
    **{(status, EnrolmentStatus.REFUSED): (ClientEnrolled, EnrolmentRefused) for status in _GONE},
    **{
        (gone, EnrolmentStatus.DECLINED): (ClientDeclined,)
        for gone in (EnrolmentStatus.LEFT, EnrolmentStatus.DECLINED)
    },
}


def events_allowed(status: RunStatus) -> tuple[str, ...]:
    """Names of the events that a run of this status can take."""
    return tuple(kind.__name__ for kind, statuses in ALLOWED.items() if status in statuses)
