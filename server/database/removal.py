"""Runs that have ended: put away, or deleted but for a record of them."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from server.database.configs import Configs, no_such_run
from server.database.events import add_events
from server.database.runs import final_model
from server.database.session import Reading, Writing
from server.database.tables import deletions, enrolments, events, participants, rounds, runs
from shared.problems import IllegalTransition, NotFound
from shared.schemas import (
    DeletedRun,
    Deletion,
    EventView,
    ParticipantStatus,
    RecordedClient,
    RoundStatus,
    RunRecord,
)

__all__ = [
    "archive_run",
    "delete_run",
    "find_creation",
    "find_ended",
    "list_deletions",
    "read_deletion",
]

Row = Any  # of a select with many columns: checked by what it is made into


def find_creation(connection: Reading, run: str) -> dt.datetime | None:
    """When the run was created; None for no such run."""
    found: dt.datetime | None = connection.select(
        sa.select(runs.c.created_at).where(runs.c.run == run)
    ).scalar()
    return found


def find_ended(connection: Reading, run: str) -> dt.datetime:
    """When the run was created. Raises NotFound, and IllegalTransition for a run that has not ended."""
    row: Row = connection.select(sa.select(runs).where(runs.c.run == run)).one_or_none()
    created_at: dt.datetime = _check_ended(run, row).created_at
    return created_at


def _check_ended(run: str, row: Row) -> Row:
    if row is None:
        raise no_such_run(run)
    if not row.status.is_terminal:
        raise IllegalTransition(
            f"run {run!r} is {row.status}: only a run that has ended is put away or deleted",
            hint=f"Stop it first: feddisco run stop {run}.",
        )
    return row


def _lock(connection: Writing, run: str, *, key_share: bool = False) -> Row:
    """The run's row, which nobody changes until the transaction ends; None for no such run.

    ``key_share``: others may go on to write rows that name the run.
    """
    own = sa.select(runs).where(runs.c.run == run).with_for_update(key_share=key_share)
    return connection.select(own).one_or_none()


def archive_run(connection: Writing, run: str, archived: bool, *, actor: str, now: dt.datetime) -> bool:
    """Put the run away, or back; whether that is news. Raises as :func:`find_ended`."""
    row = _check_ended(run, _lock(connection, run, key_share=True))
    if (row.archived_at is not None) == archived:
        return False
    connection.execute(runs.update().where(runs.c.run == run).values(archived_at=now if archived else None))
    kind = "run_archived" if archived else "run_unarchived"
    add_events(connection, [{"kind": kind, "run": run}], actor=actor, now=now)
    return True


def delete_run(
    connection: Writing,
    run: str,
    configs: Configs,
    *,
    reason: str,
    actor: str,
    now: dt.datetime,
    even_open: bool = False,
) -> DeletedRun:
    """Delete all rows of the run, and write the record of it. Files are collected afterwards.

    ``even_open``: also a run that has not ended. Raises as :func:`find_ended`.
    """
    row = _lock(connection, run)
    if row is None or not even_open:
        _check_ended(run, row)
    record = _make_record(connection, row, configs)
    kept = {"run": run, "created_at": row.created_at, "deleted_at": now, "actor": actor, "reason": reason}
    connection.execute(deletions.insert(), kept | {"record": record.model_dump(mode="json")})
    connection.execute(runs.delete().where(runs.c.run == run))  # its children go with it
    connection.pending[run] = None
    detail = {"run": run, "reason": reason, "completed_rounds": record.completed_rounds}
    add_events(connection, [{"kind": "run_deleted", "detail": detail}], actor=actor, now=now)
    return DeletedRun(**kept, record=record)


def list_deletions(connection: Reading) -> list[Deletion]:
    """Newest first."""
    columns = [column for column in deletions.c if column.name not in ("id", "record")]
    found = connection.select(sa.select(*columns).order_by(deletions.c.id.desc()))
    return [Deletion(**row._mapping) for row in found]


def read_deletion(connection: Reading, run: str) -> DeletedRun:
    """Raises :class:`NotFound`."""
    columns = [column for column in deletions.c if column.name != "id"]
    row = connection.select(sa.select(*columns).where(deletions.c.run == run)).one_or_none()
    if row is None:
        raise NotFound(
            f"no run {run!r} was deleted",
            hint="`feddisco run list --deleted` (GET /api/v1/deletions) has those that were.",
        )
    return DeletedRun(**row._mapping)


# -------------------------------------------------------------------- the record


def _make_record(connection: Reading, row: Row, configs: Configs) -> RunRecord:
    digest, count = hashlib.sha256(), 0
    for line in _event_lines(connection, row.run):
        digest.update(line)
        count += 1
    return RunRecord(
        status=row.status,
        reason=row.reason,
        config=row.config,
        classes=row.classes,
        started_at=row.started_at,
        finished_at=row.finished_at,
        completed_rounds=row.completed_rounds,
        initial_model=row.initial_model,
        final_model=final_model(connection, row.run, configs) or row.initial_model,
        models=_list_models(connection, row.run),
        clients=_list_clients(connection, row.run),
        events=count,
        events_sha256=digest.hexdigest(),
    )


def _event_lines(connection: Reading, run: str) -> Iterator[bytes]:
    for row in connection.select(sa.select(events).where(events.c.run == run).order_by(events.c.id)):
        yield EventView(**row._mapping).model_dump_json().encode() + b"\n"


def _list_models(connection: Reading, run: str) -> tuple[str | None, ...]:
    completed = sa.and_(rounds.c.run == run, rounds.c.status == RoundStatus.COMPLETED)
    return tuple(
        connection.select(sa.select(rounds.c.model).where(completed).order_by(rounds.c.round)).scalars()
    )


def _list_clients(connection: Reading, run: str) -> tuple[RecordedClient, ...]:
    counted = (
        sa.select(
            participants.c.client,
            sa.func.count().label("rounds"),
            sa.func.avg(participants.c.weight).label("mean_weight"),
        )
        .join(rounds)
        .where(
            participants.c.run == run,
            participants.c.status == ParticipantStatus.AGGREGATED,
            rounds.c.status == RoundStatus.COMPLETED,
        )
        .group_by(participants.c.client)
        .subquery()
    )
    columns = (enrolments.c.client, enrolments.c.role, enrolments.c.index, enrolments.c.examples)
    statement = (
        sa.select(*columns, sa.func.coalesce(counted.c.rounds, 0).label("rounds"), counted.c.mean_weight)
        .outerjoin(counted, counted.c.client == enrolments.c.client)
        .where(enrolments.c.run == run)
        .order_by(enrolments.c.index.is_(None), enrolments.c.index, enrolments.c.client)
    )
    return tuple(RecordedClient(**row._mapping) for row in connection.select(statement))
