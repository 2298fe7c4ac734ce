"""What the database says of files and rounds, read whole to be compared with the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from server.database.session import Reading
from server.database.tables import (
    are_of_one_attempt,
    blobs,
    installation,
    participants,
    rounds,
    runs,
    travelling,
)
from shared.schemas import RoundStatus

__all__ = ["StoredRound", "StoredRun", "StoredUpdate", "list_recorded", "list_runs", "read_id"]


@dataclass(frozen=True, slots=True)
class StoredUpdate:
    """A participant's row in a completed round."""

    client: str
    digest: str | None
    bytes: int | None
    included: bool
    weight: float | None


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A completed round; of one that is ``secure`` nobody's weight is known. ``averaged``: the next one
    starts from its model.
    """

    round: int
    attempt: int
    start_model: str
    start_broadcast: str | None
    start_private: str | None
    model: str | None
    broadcast: str | None
    private: str | None
    secure: bool
    averaged: bool
    updates: tuple[StoredUpdate, ...]


@dataclass(frozen=True, slots=True)
class StoredRun:
    run: str
    initial_model: str
    completed_rounds: int
    rounds: tuple[StoredRound, ...]


_TRAVELS = sa.select(travelling.c.run).where(are_of_one_attempt(travelling, rounds)).exists()


def read_id(connection: Reading) -> str | None:
    """The database's id, None if it has none yet."""
    found: str | None = connection.select(sa.select(installation.c.id)).scalar_one_or_none()
    return found


def list_recorded(connection: Reading) -> dict[str, int]:
    """Bytes by digest of every file that was stored for a run and not collected since."""
    found = connection.select(sa.select(blobs.c.digest, blobs.c.bytes))
    return {row.digest: row.bytes for row in found}


def list_runs(connection: Reading) -> Iterator[StoredRun]:
    """Every run with its completed rounds, in the order of names and numbers."""
    columns = (runs.c.run, runs.c.initial_model, runs.c.completed_rounds)
    for run, initial, completed in connection.select(sa.select(*columns).order_by(runs.c.run)).all():
        yield StoredRun(run, initial, completed, tuple(_list_rounds(connection, run)))


def _list_rounds(connection: Reading, run: str) -> Iterator[StoredRound]:
    updates: dict[tuple[int, int], list[StoredUpdate]] = {}
    found = sa.select(
        participants.c.round,
        participants.c.attempt,
        participants.c.client,
        participants.c.update,
        participants.c.bytes,
        participants.c.included,
        participants.c.weight,
    ).where(participants.c.run == run)
    for number, attempt, client, digest, size, included, weight in connection.select(
        found.order_by(participants.c.round, participants.c.attempt, participants.c.index)
    ):
        update = StoredUpdate(client, digest, size, bool(included), weight)
        updates.setdefault((number, attempt), []).append(update)
    columns = (
        *(rounds.c.round, rounds.c.attempt, rounds.c.start_model, rounds.c.start_broadcast),
        *(rounds.c.start_private, rounds.c.model, rounds.c.broadcast, rounds.c.private),
        rounds.c.secure.is_not(None).label("secure"),
        sa.not_(_TRAVELS).label("averaged"),
    )
    is_completed = (rounds.c.status == RoundStatus.COMPLETED, rounds.c.round > 0)  # 0 makes no model
    completed = sa.select(*columns).where(rounds.c.run == run, *is_completed)
    for row in connection.select(completed.order_by(rounds.c.round)):
        yield StoredRound(**row._mapping, updates=tuple(updates.get((row.round, row.attempt), ())))
