"""Clients that come and go: enrolment, the discrepancy, indexes, leaving, and how they start a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from server.lifecycle.draft import Draft
from server.lifecycle.events import (
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    DiscrepancyReceived,
    StartRequested,
)
from server.lifecycle.refusals import illegal
from server.lifecycle.round_steps import close_if_done, open_next, present_clients
from server.lifecycle.state import Enrolment, Run
from server.lifecycle.views import (
    drawable_trainers,
    ready_trainers,
    unfinished_participants,
    updates_needed,
    waits_for_clients,
)
from shared.problems import AlreadyEnrolled, DiscrepancyAlreadySubmitted, IndexTaken
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus

__all__ = [
    "client_declined",
    "client_enrolled",
    "client_left",
    "client_seen",
    "discrepancy_received",
    "start_requested",
]

NO_EXAMPLES = "has no examples, so it is never drawn"


def client_enrolled(draft: Draft, event: ClientEnrolled) -> None:
    before = draft.run.enrolment(event.client)
    if before is not None and not before.status.is_gone:
        _refuse_other_particulars(draft.run, before, event)
        return
    enrolment = Enrolment(
        client=event.client,
        role=event.role,
        status=_first_status(draft.run, event),
        examples=event.examples,
        index=_choose_index(draft.run, before, event),
        reason=NO_EXAMPLES if event.role is Role.TRAINER and event.examples == 0 else None,
    )
    draft.put_enrolment(enrolment)
    detail: dict[str, Any] = {"role": str(event.role), "examples": event.examples, "index": enrolment.index}
    if enrolment.reason:
        detail["reason"] = enrolment.reason
    draft.record("client_enrolled", event.client, **detail)
    if enrolment.status is EnrolmentStatus.AWAITING_DISCREPANCY:
        draft.wake(event.client)
    _go_on(draft)


def _first_status(run: Run, event: ClientEnrolled) -> EnrolmentStatus:
    # a client that is never drawn is asked for nothing
    asked = run.policy.needs_discrepancy and event.role is Role.TRAINER and event.examples > 0
    return EnrolmentStatus.AWAITING_DISCREPANCY if asked else EnrolmentStatus.READY


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
    return None if run.status is RunStatus.ENROLLING else max(taken, default=-1) + 1


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
                role=Role.TRAINER,
                status=EnrolmentStatus.DECLINED,
                examples=0,
                reason=event.reason,
            )
        )
    elif before.status is EnrolmentStatus.DECLINED:
        return
    else:
        draft.move_enrolment(before, EnrolmentStatus.DECLINED, event.reason)
    draft.record("client_declined", event.client, reason=event.reason)
    _expect_no_update(draft, event)


def client_left(draft: Draft, event: ClientLeft) -> None:
    enrolment = draft.run.enrolment(event.client)
    if enrolment is None or draft.run.status.is_terminal:
        _finish(draft, event, enrolment)
        return
    if not enrolment.status.is_present:
        return
    draft.move_enrolment(enrolment, EnrolmentStatus.LEFT, event.reason)
    draft.record("client_left", event.client, reason=event.reason)
    _expect_no_update(draft, event)


def _finish(
    draft: Draft, event: ClientDeclined | ClientLeft, enrolment: Enrolment | None, reason: str | None = None
) -> None:
    """The client has seen that the run is over."""
    if enrolment is None:
        raise illegal(draft.run, event, f"{event.client!r} is not enrolled in run {draft.run.id!r}")
    if enrolment.status.is_present:
        draft.move_enrolment(enrolment, EnrolmentStatus.FINISHED, reason)
        draft.record("client_finished", event.client)


def _expect_no_update(draft: Draft, event: ClientDeclined | ClientLeft) -> None:
    """The open round no longer waits for the client."""
    current = draft.run.round
    if current is None or current.status is not RoundStatus.COLLECTING:
        return
    participant = current.participant(event.client)
    if participant in unfinished_participants(current):
        draft.move_participant(participant, ParticipantStatus.FAILED, event.reason)
        close_if_done(draft)


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
    if not run.policy.needs_discrepancy or enrolment.role is not Role.TRAINER or enrolment.examples == 0:
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
    ready = len(drawable_trainers(run))
    if ready < needed:
        raise illegal(
            run,
            event,
            f"run {run.id!r} needs {needed} ready trainers with examples and has {ready}",
            f"Let {needed - ready} more enrol and submit what they are asked for.",
        )
    _start(draft, "asked for")


def _go_on(draft: Draft) -> None:
    """A client became ready: starts the run if it starts by itself, or opens the round that waited for it."""
    run = draft.run
    if waits_for_clients(run):
        open_next(draft, waited=True)
    elif run.status is RunStatus.ENROLLING and run.policy.autostart:
        enough = len(ready_trainers(run)) >= run.policy.min_clients
        if enough and len(drawable_trainers(run)) >= updates_needed(run):
            _start(draft, f"{run.policy.min_clients} trainers are ready")


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
        if e.role is Role.TRAINER and e.index is None and not e.status.is_gone
    )
    indexes: dict[str, int] = {}
    for client in unindexed:
        indexes[client] = _lowest_free(taken)
        taken.add(indexes[client])
    return indexes
