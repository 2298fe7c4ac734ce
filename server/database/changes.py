"""Writes the difference between a run and what a decision made of it: changed rows only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from server.database.change import Change
from server.database.changed_rounds import write_round
from server.database.facts import (
    AggregationFacts,
    DiscrepancyFacts,
    EnrolmentFacts,
    FailureFacts,
    UpdateFacts,
)
from server.database.journal import add_events
from server.database.session import Writing
from server.database.tables import blobs, enrolments, runs
from server.lifecycle.effects import Record
from server.lifecycle.events import FailureReported
from server.lifecycle.state import Enrolment
from shared.schemas import RunStatus

__all__ = ["StaleVersion", "add_blobs", "write"]


class StaleVersion(Exception):
    """Another process moved the run since it was read: read again, decide again."""


def write(connection: Writing, change: Change) -> None:
    """All rows and events of the change; :class:`StaleVersion` and nothing written if the version moved."""
    _swap_run(connection, change)
    _write_enrolments(connection, change)
    for after in (*change.decision.ended, change.decision.run.round):
        if after is not None:
            write_round(connection, change, after)
    if isinstance(change.facts, UpdateFacts):
        add_blobs(connection, {change.facts.digest: change.facts.bytes}, change.now)
    if isinstance(change.facts, AggregationFacts):
        add_blobs(connection, change.facts.blobs, change.now)
    add_events(
        connection,
        [
            {
                "kind": effect.kind,
                "run": change.run,
                "round": effect.round,
                "client": effect.client,
                "detail": effect.detail | _more_detail(change, effect),
            }
            for effect in change.decision.effects
            if isinstance(effect, Record)
        ],
        actor=change.actor,
        now=change.now,
    )


def _more_detail(change: Change, record: Record) -> dict[str, Any]:
    match change.facts:
        case UpdateFacts(digest=digest, bytes=size) if record.kind == "update_received":
            return {"update": digest, "bytes": size}
        case FailureFacts(code=code) if record.kind == "failure_reported":
            return {"code": code}
        case AggregationFacts(model=str(model)) if record.kind == "round_completed":
            return {"model": model}
    return {}


_OF_RUN = sa.bindparam("of_run", type_=sa.String)
_OF_CLIENT = sa.bindparam("of_client", type_=sa.String)
_SWAP = runs.update().where(
    runs.c.run == _OF_RUN, runs.c.version == sa.bindparam("of_version", type_=sa.BigInteger)
)
_ENROLMENT = enrolments.update().where(enrolments.c.run == _OF_RUN, enrolments.c.client == _OF_CLIENT)


# -------------------------------------------------------------------- the run


def _swap_run(connection: Writing, change: Change) -> None:
    old, new, version = change.before.run, change.decision.run, change.before.version
    values: dict[str, Any] = {"version": version + 1}
    if (old.status, old.reason) != (new.status, new.reason):
        values |= {"status": new.status, "reason": new.reason}
    if old.completed_rounds != new.completed_rounds:
        values["completed_rounds"] = new.completed_rounds
    if old.status is RunStatus.ENROLLING and new.status is RunStatus.RUNNING:
        values["started_at"] = change.now
    if new.status.terminal and not old.status.terminal:
        values["finished_at"] = change.now
    swapped = connection.execute(_SWAP, {"of_run": change.run, "of_version": version, **values})
    if swapped.rowcount != 1:
        raise StaleVersion


# -------------------------------------------------------------------- enrolments


def _write_enrolments(connection: Writing, change: Change) -> None:
    known = {e.client: e for e in change.before.run.enrolments}
    for enrolment in change.decision.run.enrolments:
        before = known.get(enrolment.client)
        values = _enrolment_values(change, before, enrolment)
        if before is None:
            row = {"run": change.run, "client": enrolment.client, "device": "", "enrolled_at": change.now}
            connection.execute(enrolments.insert(), row | values)
        elif values:
            named = {"of_run": change.run, "of_client": enrolment.client}
            connection.execute(_ENROLMENT, named | values)


def _enrolment_values(change: Change, before: Enrolment | None, after: Enrolment) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if before != after:
        values = {
            "role": after.role,
            "status": after.status,
            "index": after.index,
            "examples": after.examples,
            "reason": after.reason,
        }
    if after.client == change.client:
        values |= _told(change, before, after)
    return values


def _told(change: Change, before: Enrolment | None, after: Enrolment) -> dict[str, Any]:
    """What the facts of this event say about the client's enrolment."""
    match change.facts:
        case EnrolmentFacts(device=device):
            # other data have another discrepancy
            forgotten = {"discrepancy": None, "discrepancy_metric": None}
            other_data = before is not None and before.examples != after.examples
            return {"device": device, "enrolled_at": change.now} | (forgotten if other_data else {})
        case DiscrepancyFacts(metric=metric, value=value):
            return {"discrepancy": value, "discrepancy_metric": metric}
        case FailureFacts(code=code) if isinstance(change.event, FailureReported):
            return {"last_error": f"{code}: {change.event.reason}"}
        case UpdateFacts() if after.client in change.before.troubled:
            return {"last_error": None}
    return {}


# -------------------------------------------------------------------- blobs


def add_blobs(connection: Writing, sizes: Mapping[str, int], now: dt.datetime) -> None:
    """Notes blobs, whose files are there already; the same content may be known."""
    rows = [{"digest": digest, "bytes": size, "created_at": now} for digest, size in sorted(sizes.items())]
    if rows:
        connection.execute(_ADD_BLOB[connection.dialect], rows)


_ADD_BLOB: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(blobs).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(blobs).on_conflict_do_nothing(),
}
