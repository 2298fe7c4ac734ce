"""What a run's assistant is asked in a round, and what it answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from server.database.blobs import add_blobs
from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import are_of_one_attempt, assistances, enrolments, rounds, runs
from shared.config import RunConfig
from shared.problems import Forbidden, NotFound, UpdateRefused
from shared.schemas import (
    Assist,
    AssistanceView,
    AssistedUpdate,
    AssistedWork,
    EnrolmentStatus,
    Role,
    RoundStatus,
)

__all__ = [
    "Asked",
    "Key",
    "StoredAssistance",
    "add_answer",
    "add_fault",
    "ask",
    "find_assistance",
    "find_next",
    "is_assistant",
    "is_gone",
    "list_readable",
    "make_view",
    "move_deadlines",
]

Key = tuple[str, int, int]  # run, round, attempt
_OF_KEY = tuple(assistances.c[name] == sa.bindparam(f"of_{name}") for name in ("run", "round", "attempt"))
GRACE = dt.timedelta(minutes=1)
"""How long an assistant has at least when a coordinator comes back."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an assistant is to do in a round; ``updates`` are those it looks at, by index."""

    work: AssistedWork
    updates: tuple[AssistedUpdate, ...]
    begin: tuple[float, ...] = ()
    model: str | None = None

    @property
    def indices(self) -> list[int]:
        return [update.index for update in self.updates]


@dataclass(frozen=True, slots=True)
class StoredAssistance:
    """A row: what was asked, until when, the answer's digest and numbers; ``outcome`` once it is settled."""

    asked: Asked
    deadline_at: dt.datetime
    answer: str | None = None
    report: Mapping[str, Any] | None = None
    fault: str | None = None
    outcome: str | None = None


def find_assistance(connection: Reading, key: Key) -> StoredAssistance | None:
    row = _read(connection, key)
    if row is None:
        return None
    return StoredAssistance(_asked(row), row.deadline_at, row.answer, row.report, row.fault, row.outcome)


def _read(connection: Reading, key: Key, *, lock: bool = False) -> Any:
    statement = sa.select(assistances).where(*_OF_KEY)
    statement = statement.with_for_update() if lock else statement
    return connection.select(statement, _parameters(key)).one_or_none()


def _parameters(key: Key) -> dict[str, Any]:
    return dict(zip(("of_run", "of_round", "of_attempt"), key, strict=True))


def _asked(row: Any) -> Asked:
    updates = tuple(AssistedUpdate(index=i, update=digest, share=share) for i, digest, share in row.updates)
    return Asked(row.work, updates, tuple(row.begin), row.model)


def ask(
    connection: Writing, key: Key, asked: Asked, bytes: int, deadline_at: dt.datetime, now: dt.datetime
) -> bool:
    """Whether it is asked now: another coordinator may have been faster. ``bytes`` are those of the model."""
    row = dict(zip(("run", "round", "attempt"), key, strict=True)) | {
        "work": asked.work,
        "updates": [[each.index, each.update, each.share] for each in asked.updates],
        "begin": list(asked.begin),
        "model": asked.model,
        "asked_at": now,
        "deadline_at": deadline_at,
    }
    if not connection.insert_new(assistances, [row]):
        return False
    if asked.model is not None:
        add_blobs(connection, {asked.model: bytes}, now)
    detail = {
        "attempt": key[2],
        "work": asked.work,
        "updates": len(asked.updates),
        "deadline_at": deadline_at.isoformat(),
    }
    add_events(connection, [_event("assistance_asked", key, detail)], actor="coordinator", now=now)
    return True


def _event(kind: str, key: Key, detail: Mapping[str, Any], client: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "run": key[0], "round": key[1], "client": client, "detail": detail}


# -------------------------------------------------------------------- for the assistant

_OPEN = (
    sa.select(assistances, rounds.c.start_model, runs.c.revision)
    .join(rounds, are_of_one_attempt(rounds, assistances))
    .join(runs, runs.c.run == assistances.c.run)
    .where(
        assistances.c.run.in_(sa.bindparam("runs", expanding=True)),
        rounds.c.status == RoundStatus.AGGREGATING,
        assistances.c.answered_at.is_(None),
        assistances.c.outcome.is_(None),
    )
    .order_by(assistances.c.asked_at, assistances.c.run)
    .limit(1)
)


def find_next(connection: Reading, runs: Sequence[str]) -> Assist | None:
    """What the assistant of these runs is asked now: what it was asked first, so that each has its turn."""
    row: Any = connection.select(_OPEN, {"runs": runs}).one_or_none()
    if row is None:
        return None
    asked = _asked(row)
    return Assist(
        run=row.run,
        round=row.round,
        attempt=row.attempt,
        work=asked.work,
        start=row.start_model,
        model=asked.model,
        updates=asked.updates,
        begin=asked.begin,
        deadline_at=row.deadline_at,
        revision=row.revision,
    )


_ALL_OPEN = (
    sa.select(assistances)
    .join(rounds, are_of_one_attempt(rounds, assistances))
    .where(
        rounds.c.status == RoundStatus.AGGREGATING,
        assistances.c.answered_at.is_(None),
        assistances.c.outcome.is_(None),
    )
)
_ASSISTANT = runs.c.config["assistant"]["client"].as_string()
_ASSISTED = (
    sa.select(assistances.c.model, assistances.c.updates)
    .join(rounds, are_of_one_attempt(rounds, assistances))
    .join(runs, runs.c.run == assistances.c.run)
    .join(enrolments, enrolments.c.run == assistances.c.run)
    .where(
        sa.bindparam("of_client", type_=sa.String) == _ASSISTANT,
        enrolments.c.client == sa.bindparam("of_client", type_=sa.String),
        enrolments.c.role == Role.EVALUATOR,
        enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_admitted]),
        rounds.c.status == RoundStatus.AGGREGATING,
        assistances.c.answered_at.is_(None),
        assistances.c.outcome.is_(None),
    )
)


def list_readable(connection: Reading, client: str) -> set[str]:
    """What the client may download as an assistant, while it is asked: updates, and the average of them."""
    rows = connection.select(_ASSISTED, {"of_client": client}).all()
    updates = {digest for row in rows for _, digest, _ in row.updates}
    return updates | {row.model for row in rows if row.model is not None}


def is_assistant(connection: Reading, run: str, config: RunConfig, client: str) -> bool:
    """Whether the client is the one that the run names, and is admitted as an evaluator."""
    if config.assistant is None or config.assistant.client != client:
        return False
    found = sa.select(enrolments.c.client).where(
        enrolments.c.run == run,
        enrolments.c.client == client,
        enrolments.c.role == Role.EVALUATOR,
        enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_admitted]),
    )
    return connection.select(found).first() is not None


_GONE = {
    EnrolmentStatus.LEFT: "it has left the run",
    EnrolmentStatus.DECLINED: "it has declined the run",
    EnrolmentStatus.REFUSED: "it was refused",
}


def is_gone(connection: Reading, run: str, config: RunConfig) -> str | None:
    """Why the assistant will not answer: it takes no part any more. None: it may, or it may still come."""
    if config.assistant is None:
        return None
    found = sa.select(enrolments.c.status, enrolments.c.role).where(
        enrolments.c.run == run, enrolments.c.client == config.assistant.client
    )
    row: Any = connection.select(found).one_or_none()
    if row is None:
        return None
    if row.role is not Role.EVALUATOR:
        return "it takes part as a trainer"
    return _GONE.get(row.status)


# -------------------------------------------------------------------- answers


def add_answer(
    connection: Writing,
    key: Key,
    config: RunConfig,
    client: str,
    digest: str,
    bytes: int,
    report: Mapping[str, Any],
    now: dt.datetime,
) -> bool:
    """Whether it is news; the same digest again is none.

    Raises Forbidden, NotFound, or UpdateRefused for another answer, one that comes too late or is not asked.
    """
    row = _lock(connection, key, config, client)
    if row.answer == digest:
        return False
    _check_open(connection, key, row, now)
    values = {"answer": digest, "report": dict(report), "answered_at": now}
    connection.execute(assistances.update().where(*_OF_KEY).values(values), _parameters(key))
    add_blobs(connection, {digest: bytes}, now)
    detail = {"attempt": key[2], "answer": digest, "bytes": bytes}
    add_events(connection, [_event("assistance_received", key, detail, client)], actor=client, now=now)
    return True


def add_fault(
    connection: Writing,
    key: Key,
    config: RunConfig,
    client: str,
    fault: str,
    code: str,
    now: dt.datetime,
) -> bool:
    """The assistant will not answer, and says why. Whether that is news. Raises as :func:`add_answer`."""
    row = _lock(connection, key, config, client)
    if row.fault is not None:
        return False
    _check_open(connection, key, row, now)
    values = {"fault": fault, "answered_at": now}
    connection.execute(assistances.update().where(*_OF_KEY).values(values), _parameters(key))
    detail = {"attempt": key[2], "reason": fault, "code": code}
    add_events(connection, [_event("assistance_failed", key, detail, client)], actor=client, now=now)
    return True


def _lock(connection: Writing, key: Key, config: RunConfig, client: str) -> Any:
    if not is_assistant(connection, key[0], config, client):
        raise Forbidden(f"{client!r} is not the assistant of run {key[0]!r}")
    row = _read(connection, key, lock=True)
    if row is None:
        raise NotFound(
            f"nothing is asked of an assistant in attempt {key[2]} of round {key[1]} of {key[0]!r}"
        )
    return row


def _check_open(connection: Reading, key: Key, row: Any, now: dt.datetime) -> None:
    status = sa.select(rounds.c.status).where(
        rounds.c.run == key[0], rounds.c.round == key[1], rounds.c.attempt == key[2]
    )
    if row.answered_at is not None:
        raise UpdateRefused("the assistant has answered already; the first answer stands")
    if connection.select(status).scalar() is not RoundStatus.AGGREGATING or row.outcome is not None:
        raise UpdateRefused(f"round {key[1]} of {key[0]!r} has gone on: nobody waits for an answer")
    if now >= row.deadline_at:
        raise UpdateRefused(f"the answer was due at {row.deadline_at.isoformat()}")


def move_deadlines(
    connection: Writing, absence: dt.timedelta, now: dt.datetime, set_at: dt.datetime | None
) -> None:
    """Time without a coordinator counts for no deadline; somebody who is asked has a minute at least.

    ``set_at``: when the clock was set; who was asked since was asked by the clock as it is now.
    """
    for row in connection.select(_ALL_OPEN).all():
        if set_at is not None and set_at <= row.asked_at <= now:
            continue
        moved = max(row.deadline_at + absence, now + GRACE)
        if moved != row.deadline_at:
            values = sa.update(assistances).where(*_OF_KEY).values(deadline_at=moved)
            connection.execute(values, _parameters((row.run, row.round, row.attempt)))


def make_view(row: Any) -> AssistanceView:
    """Of a whole row."""
    return AssistanceView(
        work=row.work,
        asked_at=row.asked_at,
        deadline_at=row.deadline_at,
        answered_at=row.answered_at,
        outcome=row.outcome,
        reason=row.reason,
        **(row.report or {}),
    )
