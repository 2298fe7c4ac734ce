"""What happened to one run, as those outside saw it, and what must hold of it whatever was killed or broken.

A test records what every client sent and what it was answered, and at the end reads the run's rounds and log.
:func:`find_violations` compares the two. It knows nothing of the coordinator's code: its rules are the
promises of ``docs/reliability.md``, written down a second time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from shared.schemas import EventView, RoundView, RunView

__all__ = [
    "RULES",
    "Attempt",
    "History",
    "Look",
    "Result",
    "Row",
    "Sent",
    "Violation",
    "find_violations",
    "read_attempt",
    "read_result",
]

Answer = Literal["acknowledged", "refused", "lost"]
"""``lost``: the client was not told; its update may count or not."""
TOLERANCE: Final = 1e-9
DELIVERED: Final = ("uploaded", "aggregated", "rejected")


@dataclass(frozen=True)
class Sent:
    """An update that a client sent, and what it was answered; ``value`` is what its every number is."""

    client: str
    round: int
    attempt: int
    digest: str
    answer: Answer
    reason: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Look:
    """Somebody asked to read something; ``may`` is what its rights say, ``did`` whether it was given."""

    reader: str
    what: str
    may: bool
    did: bool


@dataclass(frozen=True)
class Row:
    """One client's row of one attempt's ledger."""

    client: str
    index: int
    status: str
    digest: str | None = None
    weight: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Attempt:
    """One attempt of a round; ``value`` is what every number of its model is, if somebody has looked."""

    round: int
    attempt: int
    status: str
    rows: tuple[Row, ...]
    reason: str | None = None
    model: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class Result:
    """The run at the end. ``receipts`` counts (client, round, attempt) of the log's accepted updates."""

    status: str
    rounds: int
    completed_rounds: int
    attempts: tuple[Attempt, ...]
    receipts: tuple[tuple[str, int, int], ...] = ()


@dataclass
class History:
    """``presence``: seconds of ``deadline_seconds`` that a coordinator was there while it collected.

    ``undisturbed`` is what the same run gives without a fault. ``is_healed``: everybody worked again at the
    end, so the run must have ended.
    """

    sent: list[Sent] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    result: Result | None = None
    undisturbed: Result | None = None
    is_healed: bool = True
    deadline_seconds: float | None = None
    presence: dict[tuple[int, int], float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """For whoever looks into a failure."""
        told = asdict(self) | {"presence": [[*key, value] for key, value in self.presence.items()]}
        path.write_text(json.dumps(told, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Violation:
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def find_violations(history: History) -> list[Violation]:
    """What does not hold, by every rule; nothing if all is well."""
    assert history.result is not None, "the run has not been read"
    return [
        Violation(rule, detail) for rule, check in RULES.items() for detail in check(history, history.result)
    ]


# -------------------------------------------------------------------- the rules


def _acknowledged_is_counted(history: History, result: Result) -> Iterator[str]:
    """An update that was acknowledged is in the ledger: in the model, or with a reason why not."""
    attempts = {(a.round, a.attempt): a for a in result.attempts}
    for sent in history.sent:
        if sent.answer != "acknowledged":
            continue
        what = f"{sent.client}, round {sent.round}, attempt {sent.attempt}, {sent.digest[:12]}"
        attempt = attempts.get((sent.round, sent.attempt))
        row = None if attempt is None else _find_row(attempt, sent.client)
        if attempt is None or row is None or row.digest != sent.digest:
            yield f"{what} was acknowledged, and the ledger has {row}"
        elif row.status not in DELIVERED:
            yield f"{what} was acknowledged, and is {row.status}"
        elif row.status == "rejected" and not row.reason:
            yield f"{what} was left out without a reason"
        elif row.status == "uploaded" and attempt.status in ("completed", "rewound"):
            yield f"{what} is in no model of a round that is {attempt.status}"
        elif row.status == "uploaded" and attempt.status == "abandoned" and not attempt.reason:
            yield f"{what} was given up with its round, without a reason"


def _nothing_is_invented(history: History, result: Result) -> Iterator[str]:
    """What is in a ledger was sent by that client, for that attempt, and not always refused."""
    answers: dict[tuple[str, int, int, str], set[Answer]] = defaultdict(set)
    for sent in history.sent:
        answers[sent.client, sent.round, sent.attempt, sent.digest].add(sent.answer)
    for attempt, row in _rows(result):
        if row.digest is None:
            if row.status in DELIVERED:
                yield f"{row.client} is {row.status} in {_name(attempt)} without an update"
            continue
        found = answers.get((row.client, attempt.round, attempt.attempt, row.digest))
        if found is None:
            yield f"{_name(attempt)} has an update {row.digest[:12]} that {row.client} never sent for it"
        elif found == {"refused"}:
            yield f"{_name(attempt)} has an update {row.digest[:12]} of {row.client} that was refused"


def _no_update_counts_twice(history: History, result: Result) -> Iterator[str]:
    counted = Counter(
        (row.client, attempt.round)
        for attempt, row in _rows(result)
        if attempt.status == "completed" and row.status == "aggregated"
    )
    for (client, number), times in counted.items():
        if times > 1:
            yield f"{client} counts {times} times in round {number}"
    for receipt, times in Counter(result.receipts).items():
        if times > 1:
            yield f"the update of {receipt} was accepted {times} times"


def _ledgers_add_up(history: History, result: Result) -> Iterator[str]:
    """Every client and index once, in order of the indexes; weights of what counts sum to one."""
    for attempt in result.attempts:
        clients = [row.client for row in attempt.rows]
        indexes = [row.index for row in attempt.rows]
        if len(set(clients)) < len(clients) or indexes != sorted(set(indexes)):
            yield f"{_name(attempt)} has rows of {clients} with indexes {indexes}"
        counted = [row for row in attempt.rows if row.status == "aggregated"]
        if attempt.status not in ("completed", "rewound"):
            if counted:
                yield f"{_name(attempt)} is {attempt.status} and has counted {counted[0].client}"
            continue
        total = sum(row.weight or 0.0 for row in counted)
        if abs(total - 1) > TOLERANCE:
            yield f"the weights of {_name(attempt)} sum to {total!r}"
        if stray := [row.client for row in attempt.rows if row.status != "aggregated" and row.weight]:
            yield f"{_name(attempt)} gives weight to {', '.join(stray)}, whose update does not count"


def _rounds_follow_each_other(history: History, result: Result) -> Iterator[str]:
    """Each completed round once, without a gap; what happened before is history and does not move."""
    completed = [a.round for a in result.attempts if a.status == "completed" and a.round > 0]
    if sorted(completed) != list(range(1, result.completed_rounds + 1)):
        yield f"rounds {sorted(completed)} are completed, the run says {result.completed_rounds}"
    keys = [(a.round, a.attempt) for a in result.attempts]
    if len(set(keys)) < len(keys):
        yield f"an attempt is there twice: {keys}"
    still = [_name(a) for a in result.attempts if a.status in ("collecting", "aggregating")]
    if len(still) > 1 or (still and result.status in ("completed", "stopped")):
        yield f"the run is {result.status} and has open rounds: {still}"


def _models_are_the_means(history: History, result: Result) -> Iterator[str]:
    """Every number of a round's model is the weighted mean of its updates' numbers."""
    values = {sent.digest: sent.value for sent in history.sent if sent.value is not None}
    for attempt in result.attempts:
        if attempt.value is None:
            continue
        parts = [(row.weight or 0.0, values.get(row.digest or "")) for row in attempt.rows if row.weight]
        if any(value is None for _, value in parts):
            continue  # invented: another rule says so
        mean = sum(weight * (value or 0.0) for weight, value in parts)
        if abs(attempt.value - mean) > 1e-5 * max(1.0, abs(mean)):
            yield f"the model of {_name(attempt)} is {attempt.value!r}, its updates' mean {mean!r}"


def _rights_hold(history: History, result: Result) -> Iterator[str]:
    for look in history.looks:
        if look.did and not look.may:
            yield f"{look.reader} was given {look.what}"


def _nobody_is_hurried(history: History, result: Result) -> Iterator[str]:
    """Only time with a coordinator counts for a deadline: no outage and no step of a clock."""
    if history.deadline_seconds is None:
        return
    for attempt, row in _rows(result):
        there = history.presence.get((attempt.round, attempt.attempt))
        if row.status == "timed_out" and there is not None and there < history.deadline_seconds - 2:
            yield f"{row.client} timed out in {_name(attempt)} after {there:.0f} s with a coordinator"


def _a_run_ends(history: History, result: Result) -> Iterator[str]:
    if history.is_healed and result.status not in ("completed", "stopped"):
        yield f"everybody works again, and the run is {result.status}"
    if result.status == "completed" and result.completed_rounds != result.rounds:
        yield f"the run is completed after {result.completed_rounds} of {result.rounds} rounds"


def _models_are_those_without_faults(history: History, result: Result) -> Iterator[str]:
    """The same updates in every round so far give the same model, whatever happened in between."""
    if history.undisturbed is None:
        return
    without, found = _counted(history.undisturbed), _counted(result)
    for number, (updates, model) in sorted(found.items()):
        if number not in without or without[number][0] != updates:
            return
        if model != without[number][1]:
            yield f"the model of round {number} is {model}, without faults it is {without[number][1]}"


def _counted(result: Result) -> dict[int, tuple[list[tuple[str, str | None]], str | None]]:
    """By round, the updates that are in its model, and the model."""
    return {
        a.round: ([(row.client, row.digest) for row in a.rows if row.status == "aggregated"], a.model)
        for a in result.attempts
        if a.status == "completed"
    }


Rule = Callable[[History, Result], Iterable[str]]
RULES: Final[dict[str, Rule]] = {
    "acknowledged is counted": _acknowledged_is_counted,
    "nothing is invented": _nothing_is_invented,
    "no update counts twice": _no_update_counts_twice,
    "ledgers add up": _ledgers_add_up,
    "rounds follow each other": _rounds_follow_each_other,
    "models are the means": _models_are_the_means,
    "rights hold": _rights_hold,
    "nobody is hurried": _nobody_is_hurried,
    "a run ends": _a_run_ends,
    "models are those without faults": _models_are_those_without_faults,
}


def _find_row(attempt: Attempt, client: str) -> Row | None:
    return next((row for row in attempt.rows if row.client == client), None)


def _rows(result: Result) -> Iterator[tuple[Attempt, Row]]:
    return ((attempt, row) for attempt in result.attempts for row in attempt.rows)


def _name(attempt: Attempt) -> str:
    return f"round {attempt.round}, attempt {attempt.attempt}"


# -------------------------------------------------------------------- from the coordinator's views


def read_result(run: RunView, rounds: Iterable[RoundView], events: Iterable[EventView]) -> Result:
    """What the checker looks at, from what the API answers."""
    return Result(
        status=run.status,
        rounds=run.rounds,
        completed_rounds=run.completed_rounds,
        attempts=tuple(map(read_attempt, rounds)),
        receipts=tuple(
            (event.client or "", event.round or 0, int(event.detail["attempt"]))
            for event in events
            if event.kind == "update_received"
        ),
    )


def read_attempt(view: RoundView) -> Attempt:
    rows = (Row(row.client, row.index, row.status, row.update, row.weight, row.reason) for row in view.ledger)
    return Attempt(view.round, view.attempt, view.status, tuple(rows), view.reason, view.model)
