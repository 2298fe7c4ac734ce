"""Figures for the metrics."""

from __future__ import annotations

import sqlalchemy as sa

from server.database.session import Reading
from server.database.tables import blobs, clients, enrolments, evaluations, events, participants, rounds, runs

__all__ = ["count_rows"]


def count_rows(connection: Reading) -> dict[str, dict[str, int]]:
    """By noun and status: ``count_rows(connection)["runs"]["running"]``; what is absent is 0."""
    found: dict[str, dict[str, int]] = {}
    for table in (runs, rounds, participants, enrolments):
        statement = sa.select(table.c.status, sa.func.count()).group_by(table.c.status)
        found[table.name] = {str(status): number for status, number in connection.select(statement)}
    revoked = sa.func.count(clients.c.revoked_at)
    total, gone = connection.select(sa.select(sa.func.count(), revoked).select_from(clients)).one()
    found["clients"] = {"registered": total - gone, "revoked": gone}
    number, size = connection.select(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(blobs.c.bytes), 0)).select_from(blobs)
    ).one()
    found["blobs"] = {"number": number, "bytes": int(size)}
    for table in (evaluations, events):
        statement = sa.select(sa.func.count()).select_from(table)
        found[table.name] = {"number": connection.select(statement).scalar_one()}
    return found
