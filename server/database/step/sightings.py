"""When the participants of an open round were last heard of: read only when a deadline may be over."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from server.database.session import Reading
from server.database.tables import clients, participants
from server.lifecycle.events import Sighting
from server.lifecycle.state import Run

__all__ = ["read_sightings"]

_SEEN = (
    sa.select(
        participants.c.client,
        participants.c.progress,
        participants.c.heartbeat_at,
        participants.c.taken_at,
        clients.c.last_seen_at,
    )
    .join(clients, clients.c.client == participants.c.client)
    .where(
        participants.c.run == sa.bindparam("of_run", type_=sa.String),
        participants.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
        participants.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
    )
    .order_by(participants.c.index)
)


def read_sightings(connection: Reading, run: Run) -> tuple[Sighting, ...]:
    """Of every participant of the newest attempt, in index order; nothing if no round is open."""
    current = run.round
    if current is None or not current.status.is_open:
        return ()
    key = {"of_run": run.id, "of_round": current.number, "of_attempt": current.attempt}
    return tuple(
        Sighting(
            client=row.client,
            seen_at=_latest(row.heartbeat_at, row.taken_at, row.last_seen_at),
            done=_share_done(row.progress),
        )
        for row in connection.select(_SEEN, key)
    )


def _latest(*times: dt.datetime | None) -> dt.datetime | None:
    return max((at for at in times if at is not None), default=None)


def _share_done(progress: dict[str, Any] | None) -> float | None:
    """From 0 to 1, by steps or else by epochs; None where a heartbeat tells neither."""
    if progress is None:
        return None
    if progress["steps"]:
        share: float = progress["step"] / progress["steps"]
    elif progress["epochs"]:
        share = progress["epoch"] / progress["epochs"]
    else:
        return None
    return min(1.0, share)
