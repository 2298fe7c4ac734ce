"""Clients that come and go: enrolment, the discrepancy, indexes, leaving, and how they start a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from server.lifecycle.admission import REFUSED_BY_OPERATOR, find_refusal, find_wait
from server.lifecycle.draft import Draft
from server.lifecycle.events import (
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    DiscrepancyReceived,
    EnrolmentApproved,
    EnrolmentRefused,
    EvaluationReceived,
    StartRequested,
)
from server.lifecycle.refusals import illegal
from server.lifecycle.round_steps import close_if_done, go_on, open_next, present_clients
from server.lifecycle.state import Enrolment, Run, Score
from server.lifecycle.views import (
    evaluators,
    ready_trainers,
    trainers_to_start,
    unfinished_participants,
    updates_needed,
    waits_for_clients,
)
from shared.problems import AlreadyEnrolled, DiscrepancyAlreadySubmitted, IndexTaken
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus
from shared.texts import format_count

__all__ = [
    "client_declined",
    "client_enrolled",
    "client_left",
    "client_seen",
    "discrepancy_received",
    "enrolment_approved",
    "enrolment_refused",
    "evaluation_received",
    "start_requested",
]


def client_enrolled(draft: Draft, event: ClientEnrolled) -> None:
    before = draft.run.enrolment(event.client)
    if before is not None and not before.status.is_gone:
        _refuse_other_particulars(draft.run, before, event)
        return
    if refusal := find_refusal(draft.run, before, event):
        _refuse(draft, before, event, refusal)
        return
    waits = find_wait(draft.run, before, event)
    enrolment = Enrolment(
        client=event.client,
        role=event.role,
        status=EnrolmentStatus.AWAITING_APPROVAL if waits else _admitted_status(draft.run, event.role),
        examples=event.examples,
        index=_choose_index(draft.run, before, event),
        reason=waits,
        approved_examples=None if before is None else before.approved_examples,
        identity=event.identity,
    )
    draft.put_enrolment(enrolment)
    detail: dict[str, Any] = {"role": str(event.role), "examples": event.examples, "index": enrolment.index}
    if before is not None and before.examples not in (0, event.examples):
        detail["were"] = before.examples
    if waits:
        detail["reason"] = waits
    draft.record("client_enrolled", event.client, **detail)
    _go_on_with(draft, enrolment)


def _admitted_status(run: Run, role: Role) -> EnrolmentStatus:
    asked = run.policy.needs_discrepancy and role is Role.TRAINER
    return EnrolmentStatus.AWAITING_DISCREPANCY if asked else EnrolmentStatus.READY


def _refuse(draft: Draft, before: Enrolment | None, event: ClientEnrolled, reason: str) -> None:
    """The refusal is shown with its reason. Who was never in gets no index: it could take another's."""
    refused = Enrolment(
        client=event.client,
        role=event.role if before is None or before.index is None else before.role,
        status=EnrolmentStatus.REFUSED,
        examples=event.examples,
        index=None if before is None else before.index,
        reason=reason,
        approved_examples=None if before is None else before.approved_examples,
        identity=None if before is None else before.identity,
    )
    if refused == before:
        return  # asked again, refused again
    draft.put_enrolment(refused)
    draft.record("client_refused", event.client, role=str(event.role), examples=event.examples, reason=reason)


def _go_on_with(draft: Draft, enrolment: Enrolment) -> None:
    """After a client has come in: it is asked for what is still to come, or the run goes on."""
    if enrolment.status is EnrolmentStatus.AWAITING_DISCREPANCY:
        draft.wake(enrolment.client)
    _go_on(draft)


def enrolment_approved(draft: Draft, event: EnrolmentApproved) -> None:
    run = draft.run
    before = _require_enrolment(run, event)
    if before.status is not EnrolmentStatus.AWAITING_APPROVAL:
        if before.approved_examples == event.examples != REFUSED_BY_OPERATOR:
            return  # approved twice
        why = f"{event.client!r} does not wait for approval in run {run.id!r}: it is {before.status}"
        raise illegal(run, event, why)
    if before.examples != event.examples:
        why = f"{event.client!r} declares {before.examples} examples in run {run.id!r}, not {event.examples}"
        raise illegal(run, event, why, "Look at the size that it declares now, and approve that one.")
    approved = replace(
        before,
        status=_admitted_status(run, before.role),
        index=_late_index(run, before),
        reason=None,
        approved_examples=event.examples or None,  # a trainer of a secure run declares no size
    )
    draft.put_enrolment(approved)
    draft.record("client_approved", event.client, examples=event.examples)
    draft.wake(event.client)
    _go_on_with(draft, approved)


def _late_index(run: Run, before: Enrolment) -> int | None:
    """Those of the start have theirs; who is approved later gets the next one."""
    if before.index is not None or before.role is not Role.TRAINER or run.status is RunStatus.ENROLLING:
        return before.index
    return _next_index(run)


def enrolment_refused(draft: Draft, event: EnrolmentRefused) -> None:
    before = _require_enrolment(draft.run, event)
    reason = f"refused by the operator{f': {event.reason}' if event.reason else ''}"
    refused = replace(
        before, status=EnrolmentStatus.REFUSED, reason=reason, approved_examples=REFUSED_BY_OPERATOR
    )
    if refused == before:
        return
    draft.put_enrolment(refused)
    draft.record(
        "client_refused", event.client, role=str(before.role), examples=before.examples, reason=reason
    )
    draft.wake(event.client)
    _stop_waiting_for(draft, event.client, reason)


def _require_enrolment(run: Run, event: EnrolmentApproved | EnrolmentRefused) -> Enrolment:
    enrolment = run.enrolment(event.client)
    if enrolment is None:
        raise illegal(run, event, f"{event.client!r} is not enrolled in run {run.id!r}")
    return enrolment


def _refuse_other_particulars(run: Run, before: Enrolment, event: ClientEnrolled) -> None:
    same_index = event.index in (None, before.index) or event.role is not Role.TRAINER
    if (event.role, event.examples) == (before.role, before.examples) and same_index:
        return
    raise _already_enrolled(
        run, before, event, "Leave the run first, or enrol with the same role, examples and index."
    )


def _already_enrolled(run: Run, before: Enrolment, event: ClientEnrolled, hint: str) -> AlreadyEnrolled:
    return AlreadyEnrolled(
        f"ClientEnrolled of {event.client!r} with role={event.role}, examples={event.examples},"
        f" index={event.index} is not possible: its enrolment in run {run.id!r} is {before.status} with"
        f" role={before.role}, examples={before.examples}, index={before.index}.",
        hint=hint,
        event="ClientEnrolled",
        state=str(run.status),
        enrolment=str(before.status),
    )


def _choose_index(run: Run, before: Enrolment | None, event: ClientEnrolled) -> int | None:
    """An index belongs to its client for the whole run, even after it has left: seeds depend on it."""
    if before is not None and before.index is not None:
        if event.role is not Role.TRAINER or event.index not in (None, before.index):
            hint = f"A client that returns does so as trainer {before.index}."
            raise _already_enrolled(run, before, event, hint)
        return before.index
    if event.role is not Role.TRAINER:
        return None
    taken = {e.index for e in run.enrolments if e.index is not None}
    if event.index is not None:
        if event.index in taken:
            raise IndexTaken(
                f"ClientEnrolled of {event.client!r} is not possible: index {event.index} of run {run.id!r}"
                " belongs to another client.",
                hint="Ask for another index, or for none: the coordinator then assigns one.",
                event="ClientEnrolled",
                state=str(run.status),
                lowest_free=_lowest_free(taken),
            )
        return event.index
    return None if run.status is RunStatus.ENROLLING else _next_index(run)


def _next_index(run: Run) -> int:
    return max((e.index for e in run.enrolments if e.index is not None), default=-1) + 1


def _lowest_free(taken: Collection[int]) -> int:
    return next(index for index in range(len(taken) + 1) if index not in taken)


def client_declined(draft: Draft, event: ClientDeclined) -> None:
    """The client takes no part, or no longer: something at its side does not work, and it says what."""
    before = draft.run.enrolment(event.client)
    if draft.run.status.is_terminal:
        _finish(draft, event, before, event.reason)
        return
    if before is None:
        draft.put_enrolment(
            Enrolment(
                client=event.client,
                role=event.role,
                status=EnrolmentStatus.DECLINED,
                examples=0,
                reason=event.reason,
            )
        )
    elif before.status is EnrolmentStatus.REFUSED or (
        before.status is EnrolmentStatus.DECLINED and before.reason == event.reason
    ):
        return  # who was refused is told so; the same reason again is the same message
    else:  # also from declined: with another start the reason may be another, which is the one that holds
        draft.move_enrolment(before, EnrolmentStatus.DECLINED, event.reason)
    draft.record("client_declined", event.client, reason=event.reason)
    _stop_waiting_for(draft, event.client, event.reason)


def client_left(draft: Draft, event: ClientLeft) -> None:
    enrolment = draft.run.enrolment(event.client)
    if enrolment is None or draft.run.status.is_terminal:
        _finish(draft, event, enrolment)
        return
    if not enrolment.status.is_present:
        return
    draft.move_enrolment(enrolment, EnrolmentStatus.LEFT, event.reason)
    draft.record("client_left", event.client, reason=event.reason)
    _stop_waiting_for(draft, event.client, event.reason)


def _finish(
    draft: Draft, event: ClientDeclined | ClientLeft, enrolment: Enrolment | None, reason: str | None = None
) -> None:
    """The client has seen that the run is over."""
    if enrolment is None:
        raise illegal(draft.run, event, f"{event.client!r} is not enrolled in run {draft.run.id!r}")
    if enrolment.status.is_present:
        draft.move_enrolment(enrolment, EnrolmentStatus.FINISHED, reason)
        draft.record("client_finished", event.client)


def _stop_waiting_for(draft: Draft, client: str, reason: str) -> None:
    """The open round goes on without a client that takes no part any more, and so does a run that waits."""
    current = draft.run.round
    if _waits_for_scores(draft.run):
        go_on(draft)
        return
    if current is None or current.status is not RoundStatus.COLLECTING:
        return
    participant = current.participant(client)
    if participant is None or participant not in unfinished_participants(current):
        return
    if participant.status is ParticipantStatus.UPLOADED:  # of a secure round: its upload stays in the sum
        draft.stop_waiting_for(participant)
    else:
        draft.move_participant(participant, ParticipantStatus.FAILED, reason)
    close_if_done(draft)


def _waits_for_scores(run: Run) -> bool:
    is_open = run.round is not None and run.round.status.is_open
    return run.policy.needs_scores and not is_open and run.completed_rounds > 0


def evaluation_received(draft: Draft, event: EvaluationReceived) -> None:
    """Its row is the record of it; here is what follows from it."""
    enrolment = draft.run.enrolment(event.client)
    is_evaluator = enrolment is not None and enrolment.role is Role.EVALUATOR
    if draft.run.status.is_terminal or not draft.run.policy.needs_scores or not is_evaluator:
        return
    draft.put_score(
        Score(
            round=event.round,
            client=event.client,
            metric=event.metric,
            value=event.value,
            examples=event.examples,
        )
    )
    if _waits_for_scores(draft.run):
        go_on(draft)


def client_seen(draft: Draft, event: ClientSeen) -> None:
    enrolment = draft.run.enrolment(event.client)
    if enrolment is None or enrolment.status is not EnrolmentStatus.AWAY or draft.run.status.is_terminal:
        return
    draft.move_enrolment(enrolment, EnrolmentStatus.READY)
    draft.record("client_returned", event.client)
    _go_on(draft)


def discrepancy_received(draft: Draft, event: DiscrepancyReceived) -> None:
    run = draft.run
    enrolment = run.enrolment(event.client)
    if enrolment is None or enrolment.status.is_gone:
        raise illegal(run, event, f"{event.client!r} is not enrolled in run {run.id!r}", "Enrol first.")
    if enrolment.status is EnrolmentStatus.AWAITING_APPROVAL:
        raise illegal(run, event, f"{event.client!r} is not approved in run {run.id!r} yet", "Wait for that.")
    if not run.policy.needs_discrepancy or enrolment.role is not Role.TRAINER:
        raise illegal(run, event, f"run {run.id!r} does not ask {event.client!r} for a discrepancy")
    if enrolment.status is not EnrolmentStatus.AWAITING_DISCREPANCY:
        raise DiscrepancyAlreadySubmitted(
            f"DiscrepancyReceived of {event.client!r} is not possible: run {run.id!r} has it already"
            f" (the enrolment is {enrolment.status}).",
            hint="Nothing to do: the first value stands.",
            event="DiscrepancyReceived",
            state=str(run.status),
            enrolment=str(enrolment.status),
        )
    draft.move_enrolment(enrolment, EnrolmentStatus.READY)
    draft.record("discrepancy_received", event.client)
    _go_on(draft)


# -------------------------------------------------------------------- starting


def start_requested(draft: Draft, event: StartRequested) -> None:
    run = draft.run
    needed = max(updates_needed(run), run.policy.clients_per_round or 1)
    ready = len(ready_trainers(run))
    if ready < needed:
        raise illegal(
            run,
            event,
            f"run {run.id!r} needs {needed} ready trainers and has {ready}",
            f"Let {needed - ready} more enrol and submit what they are asked for.",
        )
    _start(draft, "asked for")


def _go_on(draft: Draft) -> None:
    """A client became ready: starts the run if it starts by itself, or opens the round that waited for it."""
    run = draft.run
    if waits_for_clients(run):
        go_on(draft)
    elif run.status is RunStatus.ENROLLING and run.policy.autostart:
        needed = trainers_to_start(run)
        scored = not run.policy.needs_scores or bool(evaluators(run))
        if scored and len(ready_trainers(run)) >= needed:
            _start(draft, f"{format_count(needed, 'trainer')} {'is' if needed == 1 else 'are'} ready")


def _start(draft: Draft, why: str) -> None:
    draft.assign_indexes(_missing_indexes(draft.run))
    draft.move_run(RunStatus.RUNNING)
    draft.record("run_started", reason=why, trainers=len(ready_trainers(draft.run)))
    draft.wake(*present_clients(draft.run, Role.EVALUATOR))
    open_next(draft)


def _missing_indexes(run: Run) -> dict[str, int]:
    """Indexes for the trainers that have none: in client-name order, lowest free first."""
    taken = {e.index for e in run.enrolments if e.index is not None}
    unindexed = sorted(
        e.client
        for e in run.enrolments
        if e.role is Role.TRAINER and e.index is None and e.status.is_admitted
    )
    indexes: dict[str, int] = {}
    for client in unindexed:
        indexes[client] = _lowest_free(taken)
        taken.add(indexes[client])
    return indexes
