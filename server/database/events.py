"""The append-only event log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from server.database import audit_log
from server.database.configs import keep_run
from server.database.session import Reading, Writing
from server.database.storable import make_storable
from server.database.tables import events
from server.lifecycle import effects
from shared.schemas import EventView

__all__ = [
    "KINDS",
    "add_events",
    "list_events",
    "newest_event_id",
    "record",
]

KINDS: Final[frozenset[str]] = frozenset(
    (
        *effects.KINDS,
        "client_registered",
        "client_revoked",
        "client_erased",
        "identity_pinned",
        "join_token_added",
        "join_token_revoked",
        "run_created",
        "run_archived",
        "run_unarchived",
        "run_deleted",
        "discrepancy_refused",  # out of its range, or by another metric
        "evaluation_received",
        "assistance_asked",
        "assistance_received",
        "assistance_failed",
        "assistance_missed",  # the round went on without the assistant's answer
        "update_refused",  # an upload that came too late, twice or uninvited
        "update_invalid",  # an upload whose bytes or headers are wrong
        "update_lost",  # an accepted update whose stored file is missing or damaged
        "update_restored",
    )
)
"""Every kind of event: those of transitions and the others. ``docs/events.md`` describes each."""
_NUMBERED = events.insert().returning(events.c.id, sort_by_parameter_order=True)


def add_events(
    connection: Writing, rows: Sequence[Mapping[str, Any]], *, actor: str, now: dt.datetime
) -> None:
    """Appends; call it last in a transaction, because ids become visible in order (``lock_events``).

    A row may say itself who its actor is.
    """
    if not rows:
        return
    if undeclared := {row["kind"] for row in rows} - KINDS:
        raise RuntimeError(f"not among KINDS, so not in docs/events.md: {sorted(undeclared)}")
    connection.lock_events()
    stored: list[dict[str, Any]] = [
        {"run": None, "round": None, "client": None, "actor": actor, "at": now}
        | dict(row)
        | {"detail": make_storable(row.get("detail", {}))}
        for row in rows
    ]
    is_shared = connection.dialect == "postgresql"  # other coordinators commit there as well
    if not is_shared and not any(audit_log.is_audited(row["kind"], row["actor"]) for row in stored):
        connection.execute(events.insert(), stored)
        return
    numbers = connection.execute(_NUMBERED, stored).scalars().all()
    connection.events += numbers
    for row, number in zip(stored, numbers, strict=True):
        if audit_log.is_audited(row["kind"], row["actor"]):
            told = {"run": row["run"], "client": row["client"]}
            # no words of a client
            told |= {"detail": row["detail"]} if audit_log.is_person(row["actor"]) else {}
            audit_log.append(connection, row["kind"], event=number, actor=row["actor"], now=now, **told)


def record(
    connection: Writing,
    kind: str,
    *,
    run: str | None,
    round: int | None,
    client: str | None,
    detail: Mapping[str, Any],
    actor: str,
    now: dt.datetime,
) -> None:
    """An event outside the transitions, such as a refused upload. NotFound for no such run."""
    if run is not None:
        keep_run(connection, run)
    row = {"kind": kind, "run": run, "round": round, "client": client, "detail": detail}
    add_events(connection, [row], actor=actor, now=now)


def list_events(connection: Reading, after_id: int, run: str | None, limit: int) -> list[EventView]:
    """At most ``limit`` events after that one, oldest first; of one run, or of all."""
    statement = sa.select(events).where(events.c.id > after_id).order_by(events.c.id).limit(limit)
    if run is not None:
        statement = statement.where(events.c.run == run)
    return [EventView(**row._mapping) for row in connection.select(statement)]


def newest_event_id(connection: Reading, run: str | None) -> int:
    """0 if there is none."""
    statement = sa.select(sa.func.max(events.c.id))
    if run is not None:
        statement = statement.where(events.c.run == run)
    newest: int | None = connection.select(statement).scalar()
    return newest or 0
