"""(run, event, now) -> (run, effects). See ``docs/architecture.md`` for the picture.

``tables`` has the rules; here every event finds its handler. Those for clients that come and go are in
``enrolling``, steps that several events share in ``round_steps``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.lifecycle import enrolling, waiting
from server.lifecycle.draft import Draft
from server.lifecycle.effects import Effect
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
from server.lifecycle.refusals import illegal, late, open_participant, refuse_unless_allowed, step_participant
from server.lifecycle.round_steps import (
    abandon,
    close_if_done,
    complete,
    go_on,
    open_next,
    present_clients,
    time_out,
)
from server.lifecycle.state import Round, Run
from server.lifecycle.views import find_obstacle, find_unscored, waits_for_clients
from shared.schemas import ParticipantStatus, RoundStatus, RunStatus
from shared.secure.coordinator import Coordinator
from shared.secure.faults import ProtocolRefused

__all__ = ["Decision", "decide"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The run afterwards, and what the shell has to do.

    ``ended``: the round that ended in this very step and is no longer ``run.round``, because the next round
    (or attempt) opened in the same step; in its final state, so that the store can write it.
    """

    run: Run
    effects: tuple[Effect, ...]
    ended: tuple[Round, ...] = ()


def decide(run: Run, event: Event, now: dt.datetime) -> Decision:
    """What follows from the event: the run afterwards, and its effects.

    Effects come in a fixed order: records as they happened, then an aggregation to start, then one
    wake-up for all clients concerned. An event that repeats what is already known has none.

    Raises a :class:`shared.problems.Conflict` that names event and state if the event is not
    possible now; the run is then unchanged.
    """
    refuse_unless_allowed(run, event)
    draft = Draft(run, event, now)
    _HANDLERS[type(event)](draft, event)
    waiting.note_obstacle(draft, find_obstacle(run))
    return Decision(draft.run, draft.effects(), draft.ended)


# -------------------------------------------------------------------- control


def _pause_requested(draft: Draft, event: PauseRequested) -> None:
    draft.move_run(RunStatus.PAUSED, event.reason or None)
    draft.record("run_paused", reason=event.reason)


def _resume_requested(draft: Draft, event: ResumeRequested) -> None:
    draft.move_run(RunStatus.RUNNING)
    draft.record("run_resumed")
    if waits_for_clients(draft.run):
        go_on(draft)


def _stop_requested(draft: Draft, event: StopRequested) -> None:
    draft.move_run(RunStatus.STOPPED, event.reason or None)
    draft.record("run_stopped", reason=event.reason)
    current = draft.run.round
    if current is not None and current.status.is_open:
        abandon(draft, "run stopped")
    draft.wake(*present_clients(draft.run))


def _rewind_requested(draft: Draft, event: RewindRequested) -> None:
    """The open attempt is abandoned, later rounds count no more, and the next one is drawn."""
    run, current = draft.run, draft.run.round
    is_open = current is not None and current.status.is_open
    if event.round > run.completed_rounds or (event.round == run.completed_rounds and not is_open):
        why = f"run {run.id!r} stands at round {run.completed_rounds}, so it cannot go back to {event.round}"
        raise illegal(run, event, why, "Name an earlier round, or 0 for the initial model.")
    if is_open:
        reason = f"the run went back to round {event.round}"
        draft.move_round(RoundStatus.ABANDONED, reason)
        draft.record_round("round_abandoned", reason=reason)
    draft.rewind(event.round)
    before = run.completed_rounds
    draft.record("run_rewound", round=event.round, completed=before, reason=event.reason)
    draft.wake(*present_clients(draft.run))
    if draft.run.status.is_going and find_unscored(draft.run) is None:
        open_next(draft)


def _change_requested(draft: Draft, event: ChangeRequested) -> None:
    """The open round goes by the new quorum, and its deadline moves by as much as the time for a round."""
    run, current = draft.run, draft.run.round
    _refuse_unless_possible(run, event)
    longer = event.policy.deadline - run.policy.deadline
    draft.change_policy(event.policy)
    changes = {name: [before, after] for name, before, after in event.changes}
    if longer and current is not None and current.status is RoundStatus.COLLECTING:
        earliest = draft.now + min(waiting.GRACE, event.policy.deadline)  # clients may be about to deliver
        draft.move_deadline(max(current.deadline_at + longer, min(earliest, current.deadline_at)))
        draft.record("run_changed", changes=changes, deadline_at=draft.round.deadline_at.isoformat())
    else:
        draft.record("run_changed", changes=changes)
    waiting.change_limits(draft, run.policy)
    is_between = current is None or not current.status.is_open
    if is_between and (run.status.is_going or run.status is RunStatus.PAUSED):
        go_on(draft)


def _refuse_unless_possible(run: Run, event: ChangeRequested) -> None:
    if run.status.is_terminal and event.policy != run.policy:
        why = f"run {run.id!r} is {run.status}, and only what it keeps and its tags can be changed"
        raise illegal(run, event, why, "Change nothing but keep_updates and tags.")
    current = run.round
    begun = current.number if current is not None and current.status.is_open else run.completed_rounds
    if event.policy.rounds != run.policy.rounds and event.policy.rounds < begun:
        why = f"round {begun} of run {run.id!r} has begun, so there cannot be {event.policy.rounds} in all"
        raise illegal(run, event, why, "Give at least as many, or stop the run.")


# -------------------------------------------------------------------- a participant's round


def _assignment_taken(draft: Draft, event: AssignmentTaken) -> None:
    participant = open_participant(draft.run, event)
    if participant.status is ParticipantStatus.FAILED:
        raise late(draft.run, event, participant)
    if participant.status is ParticipantStatus.TRAINING:
        return  # the worker was started again
    draft.move_participant(participant, ParticipantStatus.TRAINING)
    draft.record_round("assignment_taken", event.client)


def _update_received(draft: Draft, event: UpdateReceived) -> None:
    participant = open_participant(draft.run, event)
    if participant.status is ParticipantStatus.FAILED:
        raise late(draft.run, event, participant)
    draft.move_participant(participant, ParticipantStatus.UPLOADED)
    if (secure := draft.round.secure) is not None:
        _put_answer(draft, event, lambda: secure.received_upload(participant.index))
    draft.record_round("update_received", event.client)
    close_if_done(draft)


def _step_answered(draft: Draft, event: StepAnswered) -> None:
    participant, secure = step_participant(draft.run, event)
    if event.answer.index != participant.index:
        raise illegal(draft.run, event, f"the answer of {event.client!r} is in another client's name")
    if secure.has_taken(event.answer):
        return  # the answer to it was lost
    _put_answer(draft, event, lambda: secure.take(event.answer))
    draft.record_round("step_answered", event.client, step=str(secure.phase))
    close_if_done(draft)


def _put_answer(draft: Draft, event: UpdateReceived | StepAnswered, take: Callable[[], Coordinator]) -> None:
    try:
        draft.put_answer(event.client, take())
    except ProtocolRefused as refused:
        raise illegal(
            draft.run, event, str(refused), "Ask for work: it says which step is open."
        ) from refused


def _failure_reported(draft: Draft, event: FailureReported) -> None:
    participant = open_participant(draft.run, event)
    if participant.status is ParticipantStatus.FAILED:
        return  # the report came twice; the first reason stands
    if participant.status is ParticipantStatus.UPLOADED:  # of a secure round: its upload stays in the sum
        draft.stop_waiting_for(participant)
    else:
        draft.move_participant(participant, ParticipantStatus.FAILED, event.reason)
    draft.record_round("failure_reported", event.client, reason=event.reason)
    close_if_done(draft)


def _time_passed(draft: Draft, event: TimePassed) -> None:
    current = draft.run.round
    if current is None or current.status is not RoundStatus.COLLECTING:
        waiting.end_if_over(draft)
    elif draft.now >= current.deadline_at:
        time_out(draft, event.sightings)
        close_if_done(draft)


def _coordinator_returned(draft: Draft, event: CoordinatorReturned) -> None:
    current = draft.run.round
    if current is None or current.status is not RoundStatus.COLLECTING:
        waiting.move_end(draft, event.absence)
        return
    to_come_back = draft.now + min(waiting.GRACE, draft.run.policy.deadline)
    deadline = max(current.deadline_at + event.absence, to_come_back)
    if deadline != current.deadline_at:
        draft.move_deadline(deadline)
        absence = round(event.absence.total_seconds(), 3)
        draft.record_round("deadline_moved", absence_seconds=absence, deadline_at=deadline.isoformat())


# -------------------------------------------------------------------- aggregation


def _aggregation_finished(draft: Draft, event: AggregationFinished) -> None:
    _require_aggregating(draft, event)
    _judge_updates(draft, event)
    if event.totals is not None:
        draft.put_totals(event.totals)
    if event.weightless is None:
        complete(draft)
    else:
        draft.record_round("round_without_weight", reason=event.weightless)
        abandon(draft, f"no update had weight, the old model is kept: {event.weightless}")


def _judge_updates(draft: Draft, event: AggregationFinished) -> None:
    """Updates end as aggregated or rejected; the valid ones of a weightless round stay uploaded."""
    excluded = dict(event.excluded)
    uploaded = [p for p in draft.round.participants if p.status is ParticipantStatus.UPLOADED]
    if strangers := sorted(excluded.keys() - {p.client for p in uploaded}):
        raise illegal(draft.run, event, f"{', '.join(strangers)} excluded without an update in the round")
    for participant in uploaded:
        if participant.client in excluded:
            reason = excluded[participant.client]
            draft.move_participant(participant, ParticipantStatus.REJECTED, reason)
            draft.record_round("update_rejected", participant.client, reason=reason)
        elif event.weightless is None:
            draft.move_participant(participant, ParticipantStatus.AGGREGATED)


def _aggregation_delayed(draft: Draft, event: AggregationDelayed) -> None:
    _require_aggregating(draft, event)
    if draft.round.reason != event.reason:  # it is tried again and again
        draft.delay_round(event.reason)
        draft.record_round("aggregation_delayed", reason=event.reason)


def _aggregation_failed(draft: Draft, event: AggregationFailed) -> None:
    _require_aggregating(draft, event)
    draft.record_round("aggregation_failed", reason=event.reason)
    abandon(draft, f"the aggregation failed: {event.reason}")


def _require_aggregating(
    draft: Draft, event: AggregationFinished | AggregationDelayed | AggregationFailed
) -> None:
    current = draft.run.round
    wanted = (event.round, event.attempt, RoundStatus.AGGREGATING)
    if current is None or (current.number, current.attempt, current.status) != wanted:
        state = (
            f"round {current.number}, attempt {current.attempt}, {current.status}" if current else "no round"
        )
        why = f"round {event.round}, attempt {event.attempt} is not aggregating (current: {state})"
        raise illegal(draft.run, event, why, "Another process was faster, or the run was stopped: drop it.")


_HANDLERS: Final[Mapping[type[Event], Callable[[Draft, Any], None]]] = {
    ClientEnrolled: enrolling.client_enrolled,
    EnrolmentApproved: enrolling.enrolment_approved,
    EnrolmentRefused: enrolling.enrolment_refused,
    ClientDeclined: enrolling.client_declined,
    ClientLeft: enrolling.client_left,
    ClientSeen: enrolling.client_seen,
    DiscrepancyReceived: enrolling.discrepancy_received,
    EvaluationReceived: enrolling.evaluation_received,
    StartRequested: enrolling.start_requested,
    PauseRequested: _pause_requested,
    ResumeRequested: _resume_requested,
    StopRequested: _stop_requested,
    RewindRequested: _rewind_requested,
    ChangeRequested: _change_requested,
    AssignmentTaken: _assignment_taken,
    UpdateReceived: _update_received,
    StepAnswered: _step_answered,
    FailureReported: _failure_reported,
    TimePassed: _time_passed,
    CoordinatorReturned: _coordinator_returned,
    AggregationFinished: _aggregation_finished,
    AggregationDelayed: _aggregation_delayed,
    AggregationFailed: _aggregation_failed,
}
