"""Rounds and their ledgers; receipts and heartbeats of participants."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from server.database.assistances import make_view
from server.database.configs import require_run
from server.database.evaluations import list_evaluations
from server.database.session import Reading, Writing
from server.database.tables import are_of_one_attempt, assistances, participants, rounds, runs, shadows
from shared.problems import NotFound
from shared.schemas import (
    AssistanceView,
    EvaluationView,
    LedgerRow,
    ParticipantStatus,
    Progress,
    Receipt,
    RoundStatus,
    RoundView,
    SecureView,
    ShadowView,
)
from shared.secure.coordinator import Coordinator, Phase

__all__ = [
    "find_start_model",
    "list_deadlines",
    "list_overdue",
    "list_rounds",
    "lock_deadlines",
    "newest_model",
    "note_progress",
    "read_completed_attempts",
    "read_receipt",
    "read_round",
    "scored_model",
]

Row = Any  # of a select with many columns: checked by the views it is made into
LAST_ROUND = 2**31 - 1


def list_rounds(connection: Reading, run: str, since: int, until: int | None = None) -> list[RoundView]:
    """Oldest first, every attempt of these rounds; five queries however many there are."""
    until = LAST_ROUND if until is None else until
    found: list[Row] = list(
        connection.select(
            sa.select(rounds)
            .where(rounds.c.run == run, rounds.c.round.between(since, until))
            .order_by(rounds.c.round, rounds.c.attempt)
        )
    )
    if not found:
        require_run(connection, run)
    ledgers: dict[tuple[int, int], list[LedgerRow]] = defaultdict(list)
    chosen = (participants.c.run == run, participants.c.round.between(since, until))
    for row in _participants(connection, *chosen):
        ledgers[row.round, row.attempt].append(_ledger_row(row))
    scores: dict[int, list[EvaluationView]] = defaultdict(list)
    for evaluation in list_evaluations(connection, run, since=since):
        scores[evaluation.round].append(evaluation)
    shadowed: dict[tuple[int, int], list[ShadowView]] = defaultdict(list)
    for row in _shadows(connection, shadows.c.run == run, shadows.c.round.between(since, until)):
        shadowed[row.round, row.attempt].append(ShadowView(**row._mapping))
    asked = {
        (row.round, row.attempt): make_view(row)
        for row in _assistances(
            connection, assistances.c.run == run, assistances.c.round.between(since, until)
        )
    }
    return [
        _round_view(row, ledgers[key], scores[row.round], shadowed[key], asked.get(key))
        for row in found
        for key in [(row.round, row.attempt)]
    ]


_COMPLETED = sa.select(rounds.c.round, rounds.c.attempt).where(
    rounds.c.run == sa.bindparam("of_run", type_=sa.String),
    rounds.c.round > 0,  # of a secure run, 0 is the sum that ends its enrolment
    rounds.c.status == RoundStatus.COMPLETED,
)


def read_completed_attempts(connection: Reading, run: str) -> dict[int, int]:
    """By round, the attempt that was completed; none of those before which the run went back."""
    return {row.round: row.attempt for row in connection.select(_COMPLETED, {"of_run": run})}


def read_round(connection: Reading, run: str, number: int, attempt: int | None = None) -> RoundView:
    """The newest attempt unless one is named. Raises :class:`NotFound`."""
    chosen = sa.and_(rounds.c.run == run, rounds.c.round == number)
    if attempt is not None:
        chosen &= rounds.c.attempt == attempt
    statement = sa.select(rounds).where(chosen).order_by(rounds.c.attempt.desc()).limit(1)
    row: Row = connection.select(statement).one_or_none()
    if row is None:
        raise _no_such_round(connection, run, number, attempt)
    key = (participants.c.run == run, participants.c.round == number, participants.c.attempt == row.attempt)
    ledger = [_ledger_row(found) for found in _participants(connection, *key)]
    of_round = (shadows.c.run == run, shadows.c.round == number, shadows.c.attempt == row.attempt)
    shadowed = [ShadowView(**found._mapping) for found in _shadows(connection, *of_round)]
    of_attempt = (
        assistances.c.run == run,
        assistances.c.round == number,
        assistances.c.attempt == row.attempt,
    )
    asked = next((make_view(found) for found in _assistances(connection, *of_attempt)), None)
    return _round_view(row, ledger, list_evaluations(connection, run, number), shadowed, asked)


def _no_such_round(connection: Reading, run: str, number: int, attempt: int | None) -> NotFound:
    require_run(connection, run)
    which = f"round {number}" if attempt is None else f"attempt {attempt} of round {number}"
    return NotFound(
        f"run {run!r} has no {which}",
        hint=f"`feddisco run show {run}` (GET /api/v1/runs/{run}/rounds) has those there are.",
    )


def _participants(connection: Reading, *chosen: sa.ColumnElement[bool]) -> Iterable[Row]:
    return connection.select(sa.select(participants).where(*chosen).order_by(participants.c.index))


def _shadows(connection: Reading, *chosen: sa.ColumnElement[bool]) -> Iterable[Row]:
    return connection.select(sa.select(shadows).where(*chosen).order_by(shadows.c.name))


def _assistances(connection: Reading, *chosen: sa.ColumnElement[bool]) -> Iterable[Row]:
    return connection.select(sa.select(assistances).where(*chosen))


def _round_view(
    row: Row,
    ledger: Iterable[LedgerRow],
    scores: Iterable[EvaluationView],
    shadowed: Iterable[ShadowView],
    assistance: AssistanceView | None,
) -> RoundView:
    # a model is evaluated, and only a completed attempt made one
    evaluated = tuple(scores) if row.status is RoundStatus.COMPLETED else ()
    rows = tuple(ledger)
    columns = {**row._mapping, "secure": _secure_view(row, rows)}
    more = {"sums": None, "shadows": tuple(shadowed), "assistance": assistance}
    return RoundView(**columns | more, ledger=rows, evaluations=evaluated)


def _secure_view(row: Row, ledger: Sequence[LedgerRow]) -> SecureView | None:
    if row.secure is None:
        return None
    secure = Coordinator.model_validate_json(row.secure)
    collects, awaited = row.status is RoundStatus.COLLECTING, secure.awaited
    return SecureView(
        step=secure.phase.value,
        members=0 if secure.phase is Phase.ADVERTISE else len(secure.advertisements),
        awaited=tuple(entry.client for entry in ledger if entry.index in awaited) if collects else (),
        survivors=len(secure.uploaded) if secure.phase in (Phase.AGREE, Phase.UNMASK) else None,
        **(row.sums or {}),
    )


def _ledger_row(row: Row) -> LedgerRow:
    values = dict(row._mapping)
    values["included"] = bool(row.included)
    values["details"] = row.details or {}
    values["progress"] = Progress.model_validate(row.progress) if row.progress is not None else None
    return LedgerRow(**values)


_NEWEST_MODEL = (
    sa.select(rounds.c.model)
    .where(
        rounds.c.run == sa.bindparam("of_run", type_=sa.String),
        rounds.c.status == RoundStatus.COMPLETED,
        rounds.c.round > 0,  # the sum that ends a secure run's enrolment makes no model
    )
    .order_by(rounds.c.round.desc())
    .limit(1)
)


def newest_model(connection: Reading, run: str) -> str | None:
    found: str | None = connection.select(_NEWEST_MODEL, {"of_run": run}).scalar()
    return found


def scored_model(connection: Reading, run: str, number: int) -> str | None:
    """The model of a completed round that is scored, which may differ from the one that is sent."""
    chosen = (rounds.c.run == run, rounds.c.round == number, rounds.c.status == RoundStatus.COMPLETED)
    found: str | None = connection.select(sa.select(rounds.c.scored_model).where(*chosen)).scalar()
    return found


def find_start_model(
    connection: Reading, run: str, number: int, attempt: int, client: str | None = None
) -> str | None:
    """What the attempt starts from; of a client, what it starts from if that is not the same."""
    of_client = participants.alias("of_client")
    statement = (
        sa.select(sa.func.coalesce(of_client.c.start_model, rounds.c.start_model))
        .outerjoin(of_client, sa.and_(are_of_one_attempt(rounds, of_client), of_client.c.client == client))
        .where(rounds.c.run == run, rounds.c.round == number, rounds.c.attempt == attempt)
    )
    found: str | None = connection.select(statement).scalar()
    return found


def read_receipt(connection: Reading, run: str, number: int, client: str) -> Receipt:
    """Of the client's newest update to the round; with its row of the ledger once there is one."""
    statement = (
        sa.select(participants, rounds.c.status.label("round_status"))
        .join(rounds, are_of_one_attempt(rounds, participants))
        .where(
            participants.c.run == run,
            participants.c.round == number,
            participants.c.client == client,
            participants.c.update.is_not(None),
        )
        .order_by(participants.c.attempt.desc())
        .limit(1)
    )
    row: Row = connection.select(statement).one_or_none()
    if row is None:
        raise NotFound(f"{client!r} has no update in round {number} of run {run!r}")
    return Receipt(
        run=run,
        round=number,
        attempt=row.attempt,
        client=client,
        digest=row.update,
        bytes=row.bytes,
        received_at=row.uploaded_at,
        row=_ledger_row(row) if not row.round_status.is_open else None,
    )


# -------------------------------------------------------------------- deadlines

_COLLECTING = sa.select(rounds.c.run, rounds.c.opened_at.label("since")).where(
    rounds.c.status == RoundStatus.COLLECTING
)
_WAITING = sa.select(runs.c.run, runs.c.waiting_since.label("since")).where(runs.c.waiting_until.is_not(None))


def list_overdue(connection: Reading, now: dt.datetime) -> list[str]:
    """Runs whose collecting round is past its deadline, or that have waited long enough."""
    late = connection.select(_COLLECTING.where(rounds.c.deadline_at <= now))
    waited = connection.select(_WAITING.where(runs.c.waiting_until <= now))
    return sorted({row.run for row in (*late, *waited)})


def list_deadlines(connection: Reading) -> list[tuple[str, dt.datetime]]:
    """Runs whose round collects updates, or that wait for what keeps them from going on; and since when."""
    found = (*connection.select(_WAITING), *connection.select(_COLLECTING))
    return sorted({row.run: row.since for row in found}.items())


def lock_deadlines(connection: Writing) -> list[tuple[str, dt.datetime]]:
    """As :func:`list_deadlines`, by name; nobody else moves these runs until the transaction ends."""
    since = dict(list_deadlines(connection))
    own = sa.select(runs.c.run).where(runs.c.run.in_(since)).order_by(runs.c.run)
    locked = connection.select(own.with_for_update(key_share=True)).scalars()
    return [(run, since[run]) for run in locked]


# -------------------------------------------------------------------- heartbeats

_IS_COLLECTING = (
    sa.select(rounds.c.run)
    .where(are_of_one_attempt(rounds, participants), rounds.c.status == RoundStatus.COLLECTING)
    .exists()
)
_HEARTBEAT = participants.update().where(
    participants.c.run == sa.bindparam("of_run", type_=sa.String),
    participants.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
    participants.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
    participants.c.client == sa.bindparam("of_client", type_=sa.String),
    participants.c.status.in_([status for status in ParticipantStatus if status.is_awaited]),
    _IS_COLLECTING,
)


def note_progress(
    connection: Writing, run: str, number: int, client: str, progress: Progress, now: dt.datetime
) -> bool:
    """Whether the client's update is still wanted; heartbeats are no transition and leave no event."""
    values = {
        "of_run": run,
        "of_round": number,
        "of_attempt": progress.attempt,
        "of_client": client,
        "progress": progress.model_dump(mode="json"),
        "heartbeat_at": now,
    }
    return connection.execute(_HEARTBEAT, values).rowcount == 1
