"""Opening, closing, completing and abandoning rounds: steps that several events share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.lifecycle.draft import Draft
from server.lifecycle.events import Sighting
from server.lifecycle.sampling import draw
from server.lifecycle.state import Participant, Round, Run
from server.lifecycle.views import (
    abandonment,
    attempts_before,
    find_standing,
    find_unscored,
    is_best_reached,
    last_seen,
    next_attempt,
    ready_trainers,
    unfinished_participants,
    updates_needed,
)
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus
from shared.scores import Standing
from shared.secure.coordinator import Coordinator, Phase
from shared.secure.faults import AttemptAbandoned
from shared.secure.messages import Attempt

__all__ = ["abandon", "close_if_done", "complete", "go_on", "open_next", "present_clients", "time_out"]


def present_clients(run: Run, role: Role | None = None) -> list[str]:
    """Clients that are not gone, by name."""
    return sorted(e.client for e in run.enrolments if not e.status.is_gone and role in (None, e.role))


def open_next(draft: Draft) -> None:
    """Opens the next round, or leaves the run without one: it then waits for clients."""
    run = draft.run
    number, attempt = next_attempt(run)
    ready = {e.index: e.client for e in ready_trainers(run) if e.index is not None}
    if len(ready) < updates_needed(run):
        return
    policy = run.policy
    drawn = draw(
        ready,
        policy.count_drawn(number),
        seed=policy.seed,
        number=number,
        attempt=attempt - attempts_before(run, number),  # as if it had never been drawn before
        draws=policy.draws,
    )
    opened = Round(
        number=number,
        attempt=attempt,
        status=RoundStatus.COLLECTING,
        deadline_at=draft.now + policy.step_deadline,
        participants=tuple(
            Participant(client=ready[index], index=index, status=ParticipantStatus.INVITED) for index in drawn
        ),
        secure=_begin_sum(run, number, attempt, {index: ready[index] for index in drawn}),
    )
    draft.open_round(opened)
    invited = [p.client for p in opened.participants]
    draft.record_round("round_opened", participants=invited, deadline_at=opened.deadline_at.isoformat())
    draft.wake(*invited)


def _begin_sum(run: Run, number: int, attempt: int, drawn: Mapping[int, str]) -> Coordinator | None:
    """The secure half of a round, with the identity keys of those drawn; None: updates arrive in clear."""
    if run.policy.secure is None:
        return None
    identities = {
        e.index: bytes.fromhex(e.identity)
        for e in run.enrolments
        if e.index in drawn and e.identity is not None
    }
    return Coordinator(
        attempt=Attempt(run=run.id, round=number, attempt=attempt),
        threshold_share=run.policy.secure.threshold,
        identities=identities,
    )


def time_out(draft: Draft, sightings: Sequence[Sighting]) -> None:
    """Gives up on the participants that did not deliver; they are away until they are heard of again."""
    deadline = draft.round.deadline_at
    seen = {sighting.client: sighting for sighting in sightings}
    for participant in unfinished_participants(draft.round):
        known = last_seen(participant, seen.get(participant.client), deadline)
        reason = f"{known}; nothing came until the deadline {deadline.isoformat()}"
        if participant.status is ParticipantStatus.UPLOADED:  # of a secure round: it stays in the sum
            draft.stop_waiting_for(participant)
        else:
            draft.move_participant(participant, ParticipantStatus.TIMED_OUT, reason)
        draft.record_round("participant_timed_out", participant.client, was=str(participant.status))
        draft.move_enrolment(draft.enrolment(participant.client), EnrolmentStatus.AWAY, reason)
        draft.record("client_away", participant.client, reason=reason)


def close_if_done(draft: Draft) -> None:
    """Closes a collecting round that waits for nobody any more: it is aggregated, or abandoned.

    Of a secure round the open step is closed, and the next one opened.
    """
    current = draft.round
    if current.status is not RoundStatus.COLLECTING or unfinished_participants(current):
        return
    if current.secure is not None and current.secure.phase is not Phase.UPLOAD:
        _close_step(draft, current.secure)
        return
    uploaded = [p for p in current.participants if p.status is ParticipantStatus.UPLOADED]
    if len(uploaded) < updates_needed(draft.run):
        abandon(draft, _shortfall(draft.run, current, len(uploaded)))
    elif current.secure is not None:
        _close_step(draft, current.secure)
    else:
        _close(draft, len(uploaded))


def _close(draft: Draft, uploaded: int) -> None:
    draft.move_round(RoundStatus.AGGREGATING)
    draft.record_round("round_closed", updates=uploaded, participants=len(draft.round.participants))
    draft.aggregate()


def _close_step(draft: Draft, secure: Coordinator) -> None:
    """To the next step of a secure sum; after the last one it is unmasked and aggregated."""
    try:
        opened = _next_step(secure)
    except AttemptAbandoned as abandoned:
        abandon(draft, str(abandoned))
        return
    if opened is None:
        _close(draft, len(secure.uploaded))
        return
    policy = draft.run.policy
    allowed = policy.deadline if opened.phase is Phase.UPLOAD else policy.step_deadline
    draft.open_step(opened, draft.now + allowed)
    awaited = unfinished_participants(draft.round)
    deadline = draft.round.deadline_at.isoformat()
    draft.record_round("step_opened", step=str(opened.phase), clients=len(awaited), deadline_at=deadline)
    draft.wake(*(p.client for p in awaited))
    close_if_done(draft)  # all who would be asked may have left meanwhile


def _next_step(secure: Coordinator) -> Coordinator | None:
    """None after the last. Raises AttemptAbandoned if too few have answered."""
    match secure.phase:
        case Phase.ADVERTISE:
            return secure.close_advertising()[0]
        case Phase.SHARE:
            return secure.close_sharing()[0]
        case Phase.UPLOAD:
            return secure.close_uploading()[0]
        case Phase.AGREE:
            return secure.close_agreeing()[0]
        case Phase.UNMASK:
            secure.close_unmasking()
            return None


def _shortfall(run: Run, current: Round, uploaded: int) -> str:
    missing: dict[str, list[str]] = {}
    for participant in current.participants:
        if participant.status is not ParticipantStatus.UPLOADED:
            missing.setdefault(_fate(participant), []).append(participant.client)
    everybody = len(current.participants)
    told = "; ".join(
        f"{f'all {everybody} clients' if 1 < len(who) == everybody else ', '.join(who)} {what}"
        for what, who in missing.items()
    )
    return f"{uploaded} of {updates_needed(run)} needed updates came ({told})"


def _fate(participant: Participant) -> str:
    """The same words for clients of which the same is known: they are named together."""
    if participant.status is ParticipantStatus.TIMED_OUT:
        return f"timed out: {(participant.reason or '').partition(';')[0]}"
    return f"failed: {participant.reason}"


def complete(draft: Draft) -> None:
    """The new model is stored, and the run goes on."""
    draft.complete_round()
    aggregated = [p for p in draft.round.participants if p.status is ParticipantStatus.AGGREGATED]
    draft.record_round(
        "round_completed", aggregated=len(aggregated), participants=len(draft.round.participants)
    )
    draft.wake(*present_clients(draft.run, Role.EVALUATOR))
    go_on(draft)


def go_on(draft: Draft) -> None:
    """With no round open: ends the run, opens its next round, or leaves it waiting for clients or scores."""
    run = draft.run
    if find_unscored(run) is not None:
        return
    found = find_standing(run) if run.policy.needs_scores else None
    is_early = run.completed_rounds < run.policy.rounds
    if is_early and is_best_reached(run, found):
        _record_early_stop(draft, found)
    elif is_early:
        if run.status.is_going:
            open_next(draft)
        return
    draft.move_run(RunStatus.COMPLETED)
    if found is not None and run.policy.keep == "best":
        draft.record("run_completed", rounds=run.completed_rounds, kept_round=found.best_round)
    else:
        draft.record("run_completed", rounds=run.completed_rounds)
    draft.wake(*present_clients(draft.run))


def _record_early_stop(draft: Draft, found: Standing | None) -> None:
    if found is not None:
        draft.record(
            "run_stopped_early",
            round=draft.run.completed_rounds,
            metric=draft.run.scores[0].metric,
            best_round=found.best_round,
            best=found.best,
            since=found.since,
        )


def abandon(draft: Draft, reason: str) -> None:
    """Gives the attempt up and draws the round again; after ``max_attempts`` draws the run pauses.

    Attempts are counted on across a pause, so the run pauses again at every multiple of ``max_attempts``.
    """
    draft.move_round(RoundStatus.ABANDONED, reason)
    draft.record_round("round_abandoned", reason=reason)
    if not draft.run.status.is_going:
        return
    current = draft.round
    if (current.attempt - attempts_before(draft.run, current.number)) % draft.run.policy.max_attempts:
        open_next(draft)
        return
    why = abandonment(current.number, current.attempt, reason)
    draft.move_run(RunStatus.PAUSED, why)
    draft.record("run_paused", reason=why)
