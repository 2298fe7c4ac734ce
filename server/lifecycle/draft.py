"""A decision in progress: the run as changed so far, and the effects in the order they happened."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

from server.lifecycle.effects import Aggregate, Effect, Kind, Record, Wake
from server.lifecycle.events import Event
from server.lifecycle.state import Enrolment, Participant, Policy, Round, Run, Score, Wait
from server.lifecycle.tables import ENROLMENT_MOVES, PARTICIPANT_MOVES, ROUND_MOVES, RUN_MOVES, Moves, S
from shared.schemas import EnrolmentStatus, ParticipantStatus, RoundStatus, RunStatus, SumTotals
from shared.secure.coordinator import Coordinator

__all__ = ["Draft"]


class Draft:
    """Every change of a status passes through here, and so through the tables."""

    def __init__(self, run: Run, event: Event, now: dt.datetime) -> None:
        self.run = run
        self.now = now
        self.ended: tuple[Round, ...] = ()
        self._before = run
        self._cause = type(event)
        self._records: list[Record] = []
        self._aggregate: Aggregate | None = None
        self._woken: dict[str, None] = {}  # an ordered set

    @property
    def round(self) -> Round:
        """The current round, where there must be one."""
        if self.run.round is None:
            raise RuntimeError(f"run {self.run.id!r} has no round at {self._cause.__name__}")
        return self.run.round

    def enrolment(self, client: str) -> Enrolment:
        """The enrolment of a participant, which must exist."""
        found = self.run.enrolment(client)
        if found is None:
            raise RuntimeError(f"participant {client!r} of run {self.run.id!r} has no enrolment")
        return found

    def effects(self) -> tuple[Effect, ...]:
        """Records as they happened, then the aggregation if one starts, then one wake-up for all."""
        effects: list[Effect] = [*self._records]
        if self._aggregate is not None:
            effects.append(self._aggregate)
        if self._woken:
            effects.append(Wake(tuple(self._woken)))
        return tuple(effects)

    # ---------------------------------------------------------------- effects

    def record(self, kind: Kind, client: str | None = None, round: int | None = None, **detail: Any) -> None:
        self._records.append(Record(kind, client, round, detail))

    def record_round(self, kind: Kind, client: str | None = None, **detail: Any) -> None:
        """A record that belongs to the current attempt of the current round."""
        self.record(kind, client, self.round.number, attempt=self.round.attempt, **detail)

    def aggregate(self) -> None:
        self._aggregate = Aggregate(self.round.number, self.round.attempt)

    def wake(self, *clients: str) -> None:
        self._woken.update(dict.fromkeys(clients))

    # ---------------------------------------------------------------- moves

    def _check(self, moves: Moves[S], before: S | None, after: S) -> None:
        if self._cause not in moves.get((before, after), ()):
            raise RuntimeError(f"{self._cause.__name__} must not lead from {before!r} to {after!r}")

    def move_run(self, status: RunStatus, reason: str | None = None) -> None:
        self._check(RUN_MOVES, self.run.status, status)
        self.run = replace(self.run, status=status, reason=reason)

    def put_wait(self, wait: Wait | None) -> None:
        self.run = replace(self.run, wait=wait)

    def explain_wait(self, reason: str) -> None:
        """What keeps a waiting run from going on, in the words of now."""
        self.run = replace(self.run, reason=reason)

    def open_round(self, opened: Round) -> None:
        self._check(ROUND_MOVES, None, opened.status)
        if self.run.round is not None and self.run.round != self._before.round:
            self.ended += (self.run.round,)
        highest = max(self.run.highest_attempt, opened.attempt)
        self.run = replace(self.run, round=opened, highest_attempt=highest)

    def move_round(self, status: RoundStatus, reason: str | None = None) -> None:
        self._check(ROUND_MOVES, self.round.status, status)
        self.run = replace(self.run, round=replace(self.round, status=status, reason=reason))
        if self.round.secure is not None and not status.is_open:
            self._put_secure(self.round.secure.forget_sealed())

    def move_deadline(self, deadline: dt.datetime) -> None:
        self.run = replace(self.run, round=replace(self.round, deadline_at=deadline))

    def change_policy(self, policy: Policy) -> None:
        self.run = replace(self.run, policy=policy)

    def delay_round(self, reason: str) -> None:
        self.run = replace(self.run, round=replace(self.round, reason=reason))

    def complete_round(self) -> None:
        self.move_round(RoundStatus.COMPLETED)
        self.run = replace(self.run, completed_rounds=self.round.number)

    def rewind(self, number: int) -> None:
        """Back to where round ``number`` was completed; the attempt that was open has been abandoned."""
        current = self.run.round
        if current is not None and current != self._before.round:
            self.ended += (current,)
        self.run = replace(
            self.run,
            completed_rounds=number,
            round=None,
            scores=tuple(score for score in self.run.scores if score.round <= number),
            rewound_rounds=max(self.run.rewound_rounds, current.number if current is not None else 0),
            rewound_attempts=self.run.highest_attempt,
        )

    def move_participant(
        self, participant: Participant, status: ParticipantStatus, reason: str | None = None
    ) -> None:
        self._check(PARTICIPANT_MOVES, participant.status, status)
        moved = replace(participant, status=status, reason=reason)
        participants = tuple(moved if p.client == moved.client else p for p in self.round.participants)
        self.run = replace(self.run, round=replace(self.round, participants=participants))
        if status in (ParticipantStatus.FAILED, ParticipantStatus.TIMED_OUT):
            self.stop_waiting_for(moved)

    # ---------------------------------------------------------------- secure rounds

    def stop_waiting_for(self, participant: Participant) -> None:
        """In a secure round: nobody waits for what else it would send."""
        if self.round.secure is not None:
            self._put_secure(self.round.secure.without(participant.index))

    def put_answer(self, client: str, secure: Coordinator) -> None:
        """``secure`` after the client has answered the step that is open."""
        participants = tuple(
            replace(p, answered=secure.phase) if p.client == client else p for p in self.round.participants
        )
        self.run = replace(self.run, round=replace(self.round, participants=participants))
        self._put_secure(secure)

    def open_step(self, secure: Coordinator, deadline: dt.datetime) -> None:
        self._put_secure(secure)
        self.move_deadline(deadline)

    def put_totals(self, totals: SumTotals) -> None:
        self.run = replace(self.run, totals=totals)

    def _put_secure(self, secure: Coordinator) -> None:
        self.run = replace(self.run, round=replace(self.round, secure=secure))

    # ---------------------------------------------------------------- enrolments and scores

    def put_enrolment(self, enrolment: Enrolment) -> None:
        """Adds the enrolment, or replaces the same client's earlier one."""
        before = self.run.enrolment(enrolment.client)
        self._check(ENROLMENT_MOVES, before.status if before else None, enrolment.status)
        if before is None:
            self._put_enrolments((*self.run.enrolments, enrolment))
        else:
            self._put_enrolments(
                tuple(enrolment if e.client == enrolment.client else e for e in self.run.enrolments)
            )

    def move_enrolment(
        self, enrolment: Enrolment, status: EnrolmentStatus, reason: str | None = None
    ) -> None:
        self.put_enrolment(replace(enrolment, status=status, reason=reason))

    def assign_indexes(self, indexes: dict[str, int]) -> None:
        """Gives these clients their permanent index; no status changes."""
        self._put_enrolments(
            tuple(replace(e, index=indexes.get(e.client, e.index)) for e in self.run.enrolments)
        )

    def put_score(self, score: Score) -> None:
        """Adds the score, unless the client's score of that round is known: the first one stands."""
        if all((known.round, known.client) != (score.round, score.client) for known in self.run.scores):
            scores = sorted((*self.run.scores, score), key=lambda each: (each.round, each.client))
            self.run = replace(self.run, scores=tuple(scores))

    def _put_enrolments(self, enrolments: tuple[Enrolment, ...]) -> None:
        self.run = replace(self.run, enrolments=enrolments)
