"""What can be read from a run: who is ready, who has how much data, what the run is waiting for."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from server.lifecycle.events import Sighting
from server.lifecycle.state import Enrolment, Participant, Round, Run, Score
from shared.schemas import (
    EnrolmentStatus,
    ObstacleKind,
    ParticipantStatus,
    Role,
    RoundStatus,
    RunStatus,
)
from shared.scores import Standing, combine, standing
from shared.secure.coordinator import Phase
from shared.secure.ring import SMALLEST_SUM

__all__ = [
    "STEPS",
    "Obstacle",
    "abandonment",
    "attempts_before",
    "evaluators",
    "find_late_evaluators",
    "find_obstacle",
    "find_standing",
    "find_unscored",
    "is_best_reached",
    "last_seen",
    "long_wait",
    "name_obstacle",
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
    """Whether a run that goes on has no open round: the next one lacks ready trainers, or scores."""
    return run.status.is_going and (run.round is None or not run.round.status.is_open)


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


def find_late_evaluators(run: Run) -> tuple[str, ...]:
    """Whose scores of the round of :func:`find_unscored` are missing, by name; nobody's without one."""
    number = find_unscored(run)
    known = {score.client for score in run.scores if score.round == number}
    return () if number is None else tuple(client for client in evaluators(run) if client not in known)


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


# -------------------------------------------------------------------- obstacles


class Obstacle(NamedTuple):
    """What keeps a run from going on at a round: nothing that it does by itself ends that.

    ``trainers``: too few are ready for a round to open. ``scores``: of the newest model, by which the run
    goes. ``quorum``: the open round has lost so many clients that it can only be drawn again.
    ``aggregation``: something that it needs is not there.
    """

    kind: ObstacleKind
    round: int


def find_obstacle(run: Run) -> Obstacle | None:
    """None while the run works, and for one that is not to go on now."""
    current = run.round
    if not run.status.is_going:
        return None
    if current is None or not current.status.is_open:
        unscored = find_unscored(run)
        if unscored is not None:
            return Obstacle("scores", unscored)
        return Obstacle("trainers", next_attempt(run)[0])
    if current.status is RoundStatus.AGGREGATING:
        return None if current.reason is None else Obstacle("aggregation", current.number)
    return Obstacle("quorum", current.number) if _updates_to_come(current) < updates_needed(run) else None


def _updates_to_come(current: Round) -> int:
    """How many updates there can be at most, those that are here included."""
    possible = (p for p in current.participants if p.status.is_awaited)
    arrived = (p for p in current.participants if p.status is ParticipantStatus.UPLOADED)
    return sum(1 for _ in (*possible, *arrived))


# -------------------------------------------------------------------- in words


def name_obstacle(run: Run, found: Obstacle) -> str:
    """What keeps the run from going on, for its page and its log: it names clients."""
    return _obstacle(run, found, _list_names, is_for_operators=True)


def waiting_for(run: Run, now: dt.datetime, *, reader: str | None = None) -> str:
    """One plain sentence, for the page; for the client ``reader`` it names no other client."""
    tell = _list_names if reader is None else partial(_count_others, reader)
    unapproved = sorted(e.client for e in run.enrolments if e.status is EnrolmentStatus.AWAITING_APPROVAL)
    more = "" if not unapproved or run.status.is_terminal else f"; not approved yet: {tell(unapproved)}"
    return _waiting_for_clients(run, now, reader, tell) + more


def _waiting_for_clients(run: Run, now: dt.datetime, reader: str | None, tell: Tell) -> str:
    if run.status is RunStatus.ENROLLING:
        return _enrolling(run, tell)
    if run.status is RunStatus.WAITING and (found := find_obstacle(run)) is not None:
        return _obstacle(run, found, tell, is_for_operators=reader is None) + _until(run, found, now)
    if run.status.is_going and run.round is not None and run.round.status.is_open:
        return _open_round(run.round, now, reader, tell)
    if run.status.is_going:
        return _scores(run, tell) or _clients(run, tell)
    reason = run.reason if reader is None else reason_for_clients(run.reason)
    if run.status is RunStatus.PAUSED:
        return _paused(run, reason, now, reader, tell)
    return f"{run.status}: {reason}" if reason else f"nothing, the run is {run.status}"


def abandonment(number: int, attempt: int, reason: str) -> str:
    """Why a run is paused whose round found no model; the reason names clients and what they said."""
    return f"round {number} was abandoned in attempt {attempt}: {reason}"


def long_wait(since: dt.datetime, reason: str) -> str:
    """Why a run is paused that could not go on for as long as its configuration lets it wait."""
    return f"it could not go on since {_minute(since)}: {reason}"


_TOLD_TO_CLIENTS = re.compile(
    r"(round \d+ was abandoned in attempt \d+|it could not go on since [-\d]+ [:\d]+ UTC): .*", re.DOTALL
)


def reason_for_clients(reason: str | None) -> str | None:
    """A run's reason as a client may read it: what the operator wrote, but nothing that others said.

    >>> reason_for_clients(abandonment(3, 2, "1 of 2 needed updates came (north failed: no memory)"))
    'round 3 was abandoned in attempt 2'
    """
    found = _TOLD_TO_CLIENTS.fullmatch(reason or "")
    return found[1] if found else reason


SILENT_AFTER = dt.timedelta(seconds=90)
"""A client that waits asks for work once a minute, one that trains tells how far it is every few seconds."""


def last_seen(participant: Participant, seen: Sighting | None, now: dt.datetime) -> str:
    """What is known of a participant from which nothing came in time.

    >>> at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    >>> north = Participant(client="north", index=0, status=ParticipantStatus.TRAINING)
    >>> last_seen(north, Sighting("north", at, 0.4), at)
    'was training, 40 %'
    >>> last_seen(north, Sighting("north", at, 0.4), at + dt.timedelta(hours=1))
    'silent since 2026-03-01 12:00:00 UTC, when it was at 40 %'
    >>> last_seen(north, None, at)
    'never heard of'
    """
    if seen is None or seen.seen_at is None:
        return "never heard of"
    done = "" if seen.done is None else f"{100 * seen.done:.0f} %"
    if now - seen.seen_at > SILENT_AFTER:
        return f"silent since {_second(seen.seen_at)}" + (f", when it was at {done}" if done else "")
    if participant.status is ParticipantStatus.TRAINING:
        return f"was training, {done}" if done else "was at work, and did not say how far it was"
    return f"heard of at {_second(seen.seen_at)}, but it did not begin"


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
        return prefix + _aggregation(current, is_for_operators=reader is None)
    names = tell([p.client for p in unfinished_participants(current)])
    what = "" if current.secure is None else f"{STEPS[current.secure.phase]} of "
    return prefix + f"waiting for {what}{names} until {_clock(current.deadline_at, now)}"


def _aggregation(current: Round, *, is_for_operators: bool) -> str:
    uploaded = sum(p.status is ParticipantStatus.UPLOADED for p in current.participants)
    text = f"{_are(uploaded, 'update')} being aggregated"
    if current.reason is None:
        return text
    # the reason may name clients, and says what is wrong at the coordinator
    return f"{text}; delayed: {current.reason}" if is_for_operators else f"{text}, which is delayed"


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


def _obstacle(run: Run, found: Obstacle, tell: Tell, *, is_for_operators: bool) -> str:
    current = run.round
    if found.kind == "trainers" or current is None:
        return _clients(run, tell)
    if found.kind == "scores":
        return _scores(run, tell)
    prefix = f"{_name_round(found.round)}: "
    if found.kind == "aggregation":
        return prefix + _aggregation(current, is_for_operators=is_for_operators)
    awaited = [p.client for p in unfinished_participants(current)]
    lost = [p.client for p in current.participants if p.status is ParticipantStatus.FAILED]
    return (
        f"{prefix}of {updates_needed(run)} needed updates {_updates_to_come(current)} can still come, none "
        f"from {tell(lost)}; drawn again after {tell(awaited)}"
    )


def _until(run: Run, found: Obstacle, now: dt.datetime) -> str:
    if run.wait is None:
        return ""
    end = _clock(run.wait.until, now)
    if found.kind == "quorum":
        return f", at {end} at the latest"
    return f"; since {_clock(run.wait.since, now)}, pauses at {end}"


def _scores(run: Run, tell: Tell) -> str:
    number = find_unscored(run)
    late = find_late_evaluators(run)
    return "" if number is None else f"round {number}: waiting for {tell(late)} to score its model"


def _paused(run: Run, reason: str | None, now: dt.datetime, reader: str | None, tell: Tell) -> str:
    text = f"paused: {reason}" if reason else "paused until it is resumed"
    if run.round and run.round.status.is_open:
        text += f"; {_open_round(run.round, now, reader, tell)}"
    return text


def _with_status(run: Run, status: EnrolmentStatus) -> list[str]:
    return sorted(e.client for e in run.enrolments if e.role is Role.TRAINER and e.status is status)


def _second(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _minute(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def _clock(at: dt.datetime, now: dt.datetime) -> str:
    at = at.astimezone(dt.UTC)
    same_day = at.date() == now.astimezone(dt.UTC).date()
    return f"{at:%H:%M} UTC" if same_day else _minute(at)


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
