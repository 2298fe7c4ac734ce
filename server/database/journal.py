"""The append-only event log."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.tables import clean_text, events
from shared.schemas import EventView

__all__ = ["add_events", "events_after", "latest_event_id", "storable"]

LONGEST_TEXT = 2000


def storable(value: Any) -> Any:
    """The value as both databases take it in JSON: no NUL, no lone surrogate, no NaN, no infinity, no essay.

    >>> storable({"tensor": "a" * 3000, "value": float("inf")})["value"]
    'inf'
    """
    if isinstance(value, str):
        return clean_text(value[:LONGEST_TEXT])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def add_events(
    connection: Writing, rows: Sequence[Mapping[str, Any]], *, actor: str, now: dt.datetime
) -> None:
    """Appends; call it last in a transaction, because ids become visible in order (``lock_events``)."""
    if not rows:
        return
    connection.lock_events()
    common = {"at": now, "actor": actor}
    connection.execute(
        events.insert(),
        [
            {"run": None, "round": None, "client": None}
            | dict(row)
            | common
            | {"detail": storable(row.get("detail", {}))}
            for row in rows
        ],
    )


def events_after(connection: Reading, after_id: int, run: str | None, limit: int) -> list[EventView]:
    statement = sa.select(events).where(events.c.id > after_id).order_by(events.c.id).limit(limit)
    if run is not None:
        statement = statement.where(events.c.run == run)
    return [EventView(**row._mapping) for row in connection.select(statement)]


def latest_event_id(connection: Reading, run: str | None) -> int:
    """0 if there is none."""
    statement = sa.select(sa.func.max(events.c.id))
    if run is not None:
        statement = statement.where(events.c.run == run)
    newest: int | None = connection.select(statement).scalar()
    return newest or 0
