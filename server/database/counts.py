"""Figures for the metrics."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from server.database.session import Reading
from server.database.tables import blobs, clients, enrolments, evaluations, events, participants, rounds, runs
from shared.schemas import RoundStatus, RunStatus

__all__ = ["count_rows", "list_waiting"]


def count_rows(connection: Reading) -> dict[str, dict[str, int]]:
    """By noun and status: ``count_rows(connection)["runs"]["running"]``; what is absent is 0."""
    found: dict[str, dict[str, int]] = {}
    for table in (runs, rounds, participants, enrolments):
        statement = sa.select(table.c.status, sa.func.count()).group_by(table.c.status)
        found[table.name] = {str(status): number for status, number in connection.select(statement)}
    revoked = sa.func.count(clients.c.revoked_at)
    total, gone = connection.select(sa.select(sa.func.count(), revoked).select_from(clients)).one()
    found["clients"] = {"registered": total - gone, "revoked": gone}
    size, faulty = sa.func.coalesce(sa.func.sum(blobs.c.bytes), 0), sa.func.count(blobs.c.fault)
    numbers = connection.select(sa.select(sa.func.count(), size, faulty).select_from(blobs)).one()
    found["blobs"] = dict(zip(("number", "bytes", "faulty"), map(int, numbers), strict=True))
    delayed = sa.and_(rounds.c.status == RoundStatus.AGGREGATING, rounds.c.reason.is_not(None))
    statement = sa.select(sa.func.count()).select_from(rounds).where(delayed)
    found["rounds"]["delayed"] = connection.select(statement).scalar_one()
    for table in (evaluations, events):
        statement = sa.select(sa.func.count()).select_from(table)
        found[table.name] = {"number": connection.select(statement).scalar_one()}
    return found


def list_waiting(connection: Reading) -> dict[str, dt.datetime]:
    """The runs that cannot go on, and since when."""
    statement = sa.select(runs.c.run, runs.c.waiting_since).where(runs.c.status == RunStatus.WAITING)
    return {row.run: row.waiting_since for row in connection.select(statement)}
