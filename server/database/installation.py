"""What the database knows of itself: its id, and when a coordinator was last alive on it."""

from __future__ import annotations

import datetime as dt
import secrets

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.tables import installation

__all__ = ["count_change", "last_alive", "make_id", "note_alive", "read_time"]

_COUNT = installation.update().values(changes=installation.c.changes + 1).returning(installation.c.changes)


def make_id(connection: Writing, now: dt.datetime) -> str:
    """The database's id; made, if there is none yet."""
    connection.insert_new(installation, {"one": 1, "id": secrets.token_hex(16), "created_at": now}, "one")
    found: str = connection.select(sa.select(installation.c.id)).scalar_one()
    return found


def note_alive(connection: Writing, now: dt.datetime) -> dt.datetime | None:
    """A coordinator is alive now. When one was before, by the clock as it was then; None: never."""
    # locked: of several coordinators each is told what the one before it has noted
    before = connection.select(sa.select(installation.c.alive_at).with_for_update()).scalar_one_or_none()
    connection.execute(installation.update().values(alive_at=now))
    return before


def count_change(connection: Writing) -> int | None:
    """The number that stands for this commit; None: no coordinator was ever here. Called last."""
    return connection.execute(_COUNT).scalar_one_or_none()


def last_alive(connection: Reading) -> dt.datetime | None:
    """When a coordinator last noted that it is alive; None: never, or there are no tables yet."""
    if not connection.has_table(installation.name):
        return None
    return connection.select(sa.select(installation.c.alive_at)).scalar_one_or_none()


def read_time(connection: Reading) -> dt.datetime:
    """PostgreSQL's time of day: one clock for all coordinators."""
    found: dt.datetime = connection.select(sa.select(sa.func.clock_timestamp())).scalar_one()
    return found.astimezone(dt.UTC)
