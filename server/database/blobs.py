"""Blobs as the database knows them: which there are, which are needed, who may read them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.tables import blobs, enrolments, participants, rounds, runs
from shared.schemas import EnrolmentStatus, RoundStatus

__all__ = ["add_blobs", "is_readable", "list_referenced"]


def add_blobs(connection: Writing, sizes: Mapping[str, int], now: dt.datetime) -> None:
    """Notes blobs, bytes by digest. Their files are stored already; the same content may be known."""
    rows = [{"digest": digest, "bytes": size, "created_at": now} for digest, size in sorted(sizes.items())]
    if rows:
        connection.insert_new(blobs, rows)


_KEEP = runs.c.config["keep_updates"].as_integer()
_KEPT_UPDATES = (
    sa.select(participants.c.update)
    .distinct()
    .select_from(participants.join(rounds).join(runs, runs.c.run == rounds.c.run))
    .where(
        participants.c.update.is_not(None),
        sa.or_(
            _KEEP.is_(None),
            rounds.c.round > runs.c.completed_rounds - _KEEP,  # attempts that were abandoned go with theirs
            rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
        ),
    )
)


def list_referenced(connection: Reading) -> set[str]:
    """Every blob that a row names, except updates older than their run's ``keep_updates``.

    All others may be collected.
    """
    columns = (
        runs.c.initial_model,
        rounds.c.start_model,
        rounds.c.start_broadcast,
        rounds.c.start_private,
        rounds.c.model,
        rounds.c.scored_model,
        rounds.c.broadcast,
        rounds.c.private,
    )
    referenced = set(connection.select(_KEPT_UPDATES).scalars())
    for column in columns:
        found = connection.select(sa.select(column).distinct().where(column.is_not(None)))
        referenced.update(found.scalars())
    return referenced


# what a round starts from is an initial model or an earlier round's result
_READABLE = sa.union_all(
    *(
        sa.select(enrolments.c.client)
        .join(table, table.c.run == enrolments.c.run)
        .where(
            table.c[column] == sa.bindparam("of_digest", type_=sa.String),
            enrolments.c.client == sa.bindparam("of_client", type_=sa.String),
            enrolments.c.status.not_in([status for status in EnrolmentStatus if status.is_gone]),
        )
        for table, column in (
            (rounds, "model"),
            (rounds, "broadcast"),
            (rounds, "scored_model"),
            (runs, "initial_model"),
        )
    )
).subquery("readable")


def is_readable(connection: Reading, client: str, digest: str) -> bool:
    """Whether a client may download it: models and broadcasts of runs in which it is enrolled.

    Never an update, which is another client's, nor the coordinator's private state.
    """
    parameters = {"of_client": client, "of_digest": digest}
    return connection.select(sa.select(_READABLE).limit(1), parameters).first() is not None
