"""The refusals of events that are not possible now. Each names the event, the state, and what to do."""

from __future__ import annotations

from server.lifecycle.events import (
    AssignmentTaken,
    ChangeRequested,
    EnrolmentApproved,
    EnrolmentRefused,
    Event,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StartRequested,
    StepAnswered,
    StopRequested,
    UpdateReceived,
)
from server.lifecycle.state import Participant, Round, Run
from server.lifecycle.tables import ALLOWED, events_allowed
from shared.problems import (
    Conflict,
    IllegalTransition,
    NotAParticipant,
    RunOver,
    UpdateAlreadyReceived,
    UpdateLate,
    UpdateStale,
)
from shared.schemas import ParticipantStatus, RoundStatus
from shared.secure.coordinator import Coordinator

__all__ = ["RoundEvent", "illegal", "late", "open_participant", "refuse_unless_allowed", "step_participant"]

ACTS = {
    StartRequested: "starting",
    PauseRequested: "pausing",
    ResumeRequested: "resuming",
    StopRequested: "stopping",
    RewindRequested: "going back",
    ChangeRequested: "changing",
    EnrolmentApproved: "letting a client in",
    EnrolmentRefused: "keeping a client out",
}
"""What people ask for, in their words; programs read the event's name in ``event`` and ``allowed``."""

RoundEvent = AssignmentTaken | UpdateReceived | StepAnswered | FailureReported


def illegal(run: Run, event: Event, why: str, hint: str = "") -> IllegalTransition:
    """``why`` completes "... is not possible: "."""
    allowed = events_allowed(run.status)
    possible = allowed if type(event) not in ACTS else [ACTS[e] for e in ACTS if e.__name__ in allowed]
    return IllegalTransition(
        f"{_name_act(event)} is not possible: {why}.",
        hint=hint or f"Possible while the run is {run.status}: {', '.join(possible)}.",
        event=type(event).__name__,
        state=str(run.status),
        allowed=list(allowed),
    )


def _name_act(event: Event) -> str:
    words = ACTS.get(type(event))
    return words.capitalize() if words else type(event).__name__


def refuse_unless_allowed(run: Run, event: Event) -> None:
    """Raises :class:`RunOver` for a client's event after the end, else :class:`IllegalTransition`."""
    if run.status in ALLOWED[type(event)]:
        return
    client = getattr(event, "client", None)
    if run.status.is_terminal and client is not None and type(event) not in ACTS:
        raise RunOver(
            f"{type(event).__name__} of {client!r} is not possible: run {run.id!r} is {run.status}.",
            hint="The run accepts nothing more; leave it (DELETE /runs/{run}/enrolments/me).",
            event=type(event).__name__,
            state=str(run.status),
            allowed=list(events_allowed(run.status)),
        )
    raise illegal(run, event, f"run {run.id!r} is {run.status}")


def open_participant(run: Run, event: RoundEvent) -> Participant:
    """The participant that the event is about, if it is still to deliver or has already failed.

    Raises :class:`UpdateStale`, :class:`NotAParticipant`, :class:`UpdateLate` or
    :class:`UpdateAlreadyReceived`.
    """
    current = _current_round(run, event)
    participant = _participant_of(run, current, event)
    if participant.status.is_accepted and not _may_fail_later(current, event):
        raise _refusal(
            UpdateAlreadyReceived, run, event, f"the update of {event.client!r} is in the round already", ""
        )
    if current.status is not RoundStatus.COLLECTING or participant.status in (
        ParticipantStatus.TIMED_OUT,
        ParticipantStatus.REJECTED,
    ):
        raise late(run, event, participant)
    return participant


def _may_fail_later(current: Round, event: RoundEvent) -> bool:
    """In a secure round more is asked of a client after its upload."""
    collecting = current.status is RoundStatus.COLLECTING and current.secure is not None
    return collecting and isinstance(event, FailureReported)


def _participant_of(run: Run, current: Round, event: RoundEvent) -> Participant:
    participant = current.participant(event.client)
    if participant is None:
        raise _refusal(
            NotAParticipant, run, event, f"{event.client!r} was not invited", "Wait for an assignment."
        )
    return participant


def step_participant(run: Run, event: StepAnswered) -> tuple[Participant, Coordinator]:
    """The participant of a secure round that may still answer its steps, or has, and the round's secure half.

    Raises :class:`UpdateStale`, :class:`NotAParticipant` or :class:`UpdateLate`, and
    :class:`IllegalTransition` in a round whose updates arrive in clear.
    """
    current = _current_round(run, event)
    participant = _participant_of(run, current, event)
    if current.secure is None:
        raise illegal(run, event, f"run {run.id!r} takes updates in clear")
    if current.secure.has_taken(event.answer):
        return participant, current.secure  # it comes again: its answer was lost
    gone = participant.status in (ParticipantStatus.FAILED, ParticipantStatus.TIMED_OUT)
    if gone or current.status is not RoundStatus.COLLECTING:
        raise late(run, event, participant)
    return participant, current.secure


def late(run: Run, event: RoundEvent, participant: Participant) -> Conflict:
    """The round is over for this participant, or for all."""
    because = f" ({participant.reason})" if participant.reason else ""
    why = f"{event.client!r} is {participant.status}{because} in it"
    return _refusal(UpdateLate, run, event, why, "Drop this update and wait for the next assignment.")


def _current_round(run: Run, event: RoundEvent) -> Round:
    current = run.round
    if current is not None and (current.number, current.attempt) == (event.round, event.attempt):
        return current
    if current is None:
        why = "no round has been opened yet"
    else:
        why = f"the current one is round {current.number}, attempt {current.attempt}"
    raise _refusal(UpdateStale, run, event, why, "Drop this update and wait for the next assignment.")


def _refusal(kind: type[Conflict], run: Run, event: RoundEvent, why: str, hint: str) -> Conflict:
    current = run.round
    state = f"round {current.number}, attempt {current.attempt}: {current.status}" if current else "no round"
    return kind(
        f"{type(event).__name__} of {event.client!r} for round {event.round}, attempt {event.attempt},"
        f" is not possible: {why} (run {run.id!r} is {run.status}; {state}).",
        hint=hint,
        event=type(event).__name__,
        state=str(run.status),
        allowed=list(events_allowed(run.status)),
        current_round=current.number if current else None,
        current_attempt=current.attempt if current else None,
        round_status=str(current.status) if current else None,
    )
