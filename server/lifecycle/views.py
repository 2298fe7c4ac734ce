"""What can be read from a run: who is ready, who has how much data, what the run is waiting for."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from server.lifecycle.state import Enrolment, Participant, Round, Run, Score
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus
from shared.scores import Standing, combine, standing
from shared.secure.coordinator import Phase
from shared.secure.ring import SMALLEST_SUM

__all__ = [
    "STEPS",
    "abandonment",
    "attempts_before",
    "evaluators",
    "find_standing",
    "find_unscored",
    "is_best_reached",
    "next_attempt",
    "ready_trainers",
    "reason_for_clients",
    "relative_sizes",
    "trainers_to_start",
    "unfinished_participants",
    "updates_needed",
    "waiting_for",
    "waits_for_clients",
]

_NAMES_SHOWN = 5

STEPS: Final[Mapping[Phase, str]] = {
    Phase.ADVERTISE: "the public keys",
    Phase.SHARE: "the shares of the keys",
    Phase.UPLOAD: "the masked updates",
    Phase.AGREE: "the signatures under who is left",
    Phase.UNMASK: "the shares that unmask the sum",
}
"""What each step of a secure sum waits for, in words."""


def updates_needed(run: Run) -> int:
    """The quorum: updates without which a round is abandoned, and ready trainers without which none opens."""
    return max(1 if run.policy.secure is None else SMALLEST_SUM, run.policy.quorum)


def ready_trainers(run: Run) -> tuple[Enrolment, ...]:
    """Those that a round can invite: trainers without examples, whom earlier versions let in, are none."""
    return tuple(
        e
        for e in run.enrolments
        if e.role is Role.TRAINER and e.status is EnrolmentStatus.READY and _may_train(run, e)
    )


def _may_train(run: Run, enrolment: Enrolment) -> bool:
    return enrolment.examples > 0 if run.policy.secure is None else enrolment.identity is not None


def trainers_to_start(run: Run) -> int:
    """Ready trainers with which the run starts by itself."""
    return max(run.policy.min_clients, updates_needed(run))


def unfinished_participants(current: Round) -> tuple[Participant, ...]:
    """Participants that may still deliver, in index order; of a secure round: answer its open step."""
    if current.secure is None:
        return tuple(p for p in current.participants if p.status.is_awaited)
    awaited = current.secure.awaited
    return tuple(p for p in current.participants if p.index in awaited)


def waits_for_clients(run: Run) -> bool:
    """Whether a running run has no open round: the next one lacks ready trainers."""
    return run.status is RunStatus.RUNNING and (run.round is None or not run.round.status.is_open)


def next_attempt(run: Run) -> tuple[int, int]:
    """(number, attempt) of the round that opens next; a secure run begins with round 0, its first sum."""
    if run.round is not None and run.round.status is RoundStatus.ABANDONED:
        return run.round.number, run.round.attempt + 1
    if run.policy.secure is not None and run.totals is None:
        return 0, 1
    number = run.completed_rounds + 1
    return number, attempts_before(run, number) + 1


def attempts_before(run: Run, number: int) -> int:
    """Attempts of the round that count no more, since the run went back before it."""
    return run.rewound_attempts if number <= run.rewound_rounds else 0


def relative_sizes(run: Run) -> dict[str, float]:
    """``omega_k = N n_k / sum_j n_j`` by client, over the trainers that take part (mean 1).

    These are the admitted trainers that have not left, whether ready or away. Where only the sum of sizes is
    known all are 1, and each client finds its own.
    """
    secure = run.policy.secure is not None
    sizes = {
        e.client: 1 if secure else e.examples
        for e in run.enrolments
        if e.role is Role.TRAINER and e.status.is_present and e.status.is_admitted and _may_train(run, e)
    }
    total = sum(sizes.values())
    return {client: len(sizes) * examples / total for client, examples in sizes.items()}


# -------------------------------------------------------------------- scores


def evaluators(run: Run) -> tuple[str, ...]:
    """Clients that score each round's model, by name."""
    found = (e for e in run.enrolments if e.role is Role.EVALUATOR and e.status is EnrolmentStatus.READY)
    return tuple(sorted(e.client for e in found))


def find_unscored(run: Run) -> int | None:
    """The round that has to be scored before the run goes on or ends; None: there is none.

    With ``stop_when`` each round that is evaluated, with ``keep: best`` all of them at the end. Only those
    evaluators are waited for that are there.
    """
    policy, judges, last = run.policy, evaluators(run), run.completed_rounds
    if not policy.needs_scores or not judges or (policy.stop_when is None and last < policy.rounds):
        return None
    known = {(score.round, score.client) for score in run.scores}
    due = (n for n in range(1, last + 1) if n % policy.evaluate_every == 0 or n == policy.rounds)
    return next((n for n in due if any((n, client) not in known for client in judges)), None)


def find_standing(run: Run) -> Standing | None:
    """The best round so far, and how many scored ones came after it; None: no round has a score."""
    by_round: dict[int, list[Score]] = {}
    refused = {e.client for e in run.enrolments if e.status is EnrolmentStatus.REFUSED}
    for score in run.scores:
        if 0 < score.round <= run.completed_rounds and score.client not in refused:
            by_round.setdefault(score.round, []).append(score)
    rule = run.policy.combine_scores
    means = [(n, combine([(s.value, s.examples) for s in by_round[n]], rule)) for n in sorted(by_round)]
    change = run.policy.stop_when.min_change if run.policy.stop_when is not None else 0.0
    return standing(means, run.scores[0].metric, change) if means else None


def is_best_reached(run: Run, found: Standing | None) -> bool:
    """Whether the score has not become better for as long as the policy is patient."""
    stop_when = run.policy.stop_when
    return stop_when is not None and found is not None and found.since >= stop_when.patience


# -------------------------------------------------------------------- in words


def waiting_for(run: Run, now: dt.datetime, *, reader: str | None = None) -> str:
    """One plain sentence, for the page; for the client ``reader`` it names no other client."""
    tell = _list_names if reader is None else partial(_count_others, reader)
    unapproved = sorted(e.client for e in run.enrolments if e.status is EnrolmentStatus.AWAITING_APPROVAL)
    more = "" if not unapproved or run.status.is_terminal else f"; not approved yet: {tell(unapproved)}"
    return _waiting_for_clients(run, now, reader, tell) + more


def _waiting_for_clients(run: Run, now: dt.datetime, reader: str | None, tell: Tell) -> str:
    if run.status is RunStatus.ENROLLING:
        return _enrolling(run, tell)
    if run.status is RunStatus.RUNNING:
        if run.round is None or waits_for_clients(run):
            return _scores(run, tell) or _clients(run, tell)
        return _open_round(run.round, now, reader, tell)
    reason = run.reason if reader is None else reason_for_clients(run.reason)
    if run.status is RunStatus.PAUSED:
        return _paused(run, reason, now, reader, tell)
    return f"{run.status}: {reason}" if reason else f"nothing, the run is {run.status}"


def abandonment(number: int, attempt: int, reason: str) -> str:
    """Why a run is paused whose round found no model; the reason names clients and what they said."""
    return f"round {number} was abandoned in attempt {attempt}: {reason}"


_ABANDONMENT = re.compile(r"(round \d+ was abandoned in attempt \d+): .*", re.DOTALL)


def reason_for_clients(reason: str | None) -> str | None:
    """A run's reason as a client may read it: what the operator wrote, but nothing that others said.

    >>> reason_for_clients(abandonment(3, 2, "1 of 2 needed updates came (north failed: no memory)"))
    'round 3 was abandoned in attempt 2'
    """
    found = _ABANDONMENT.fullmatch(reason or "")
    return found[1] if found else reason


Tell = Callable[[Sequence[str]], str]
"""Clients in words: by their names, or only how many they are."""


def _enrolling(run: Run, tell: Tell) -> str:
    ready = len(ready_trainers(run))
    late = _with_status(run, EnrolmentStatus.AWAITING_DISCREPANCY)
    more = f"; no discrepancy yet from {tell(late)}" if late else ""
    if not run.policy.autostart:
        return f"{_are(ready, 'trainer')} ready; the run waits to be started{more}"
    if run.policy.needs_scores and not evaluators(run):
        more += "; no evaluator yet, by whose scores the run goes"
    wanted = trainers_to_start(run)
    return f"{ready} of {_count(wanted, 'trainer')} {_be(ready)} ready; the run starts with {wanted}{more}"


def _open_round(current: Round, now: dt.datetime, reader: str | None, tell: Tell) -> str:
    prefix = f"{_name_round(current.number)}: "
    if current.status is RoundStatus.AGGREGATING:
        uploaded = sum(p.status is ParticipantStatus.UPLOADED for p in current.participants)
        text = prefix + f"{_are(uploaded, 'update')} being aggregated"
        if current.reason is None:
            return text
        # the reason may name clients, and says what is wrong at the coordinator
        return f"{text}, which is delayed" if reader is not None else f"{text}; delayed: {current.reason}"
    names = tell([p.client for p in unfinished_participants(current)])
    what = "" if current.secure is None else f"{STEPS[current.secure.phase]} of "
    return prefix + f"waiting for {what}{names} until {_clock(current.deadline_at, now)}"


def _name_round(number: int) -> str:
    """Round 0 is the sum that ends a secure run's enrolment."""
    return f"round {number}" if number else "the sum over all trainers"


def _clients(run: Run, tell: Tell) -> str:
    number, _ = next_attempt(run)
    away = _with_status(run, EnrolmentStatus.AWAY)
    late = _with_status(run, EnrolmentStatus.AWAITING_DISCREPANCY)
    more = (f"; away: {tell(away)}" if away else "") + (f"; no discrepancy yet: {tell(late)}" if late else "")
    trainers = _are(len(ready_trainers(run)), "trainer")
    return f"{_name_round(number)}: {trainers} ready, {updates_needed(run)} needed{more}"


def _scores(run: Run, tell: Tell) -> str:
    number = find_unscored(run)
    known = {score.client for score in run.scores if score.round == number}
    late = [client for client in evaluators(run) if client not in known]
    return "" if number is None else f"round {number}: waiting for {tell(late)} to score its model"


def _paused(run: Run, reason: str | None, now: dt.datetime, reader: str | None, tell: Tell) -> str:
    text = f"paused: {reason}" if reason else "paused until it is resumed"
    if run.round and run.round.status.is_open:
        text += f"; {_open_round(run.round, now, reader, tell)}"
    return text


def _with_status(run: Run, status: EnrolmentStatus) -> list[str]:
    return sorted(e.client for e in run.enrolments if e.role is Role.TRAINER and e.status is status)


def _clock(at: dt.datetime, now: dt.datetime) -> str:
    at = at.astimezone(dt.UTC)
    same_day = at.date() == now.astimezone(dt.UTC).date()
    return f"{at:%H:%M} UTC" if same_day else f"{at:%Y-%m-%d %H:%M} UTC"


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _count_others(reader: str, names: Sequence[str]) -> str:
    others = sum(name != reader for name in names)
    if others == len(names):
        return _count(others, "client")
    return f"this client and {_count(others, 'other')}" if others else "this client"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _are(number: int, noun: str) -> str:
    return f"{_count(number, noun)} {_be(number)}"
