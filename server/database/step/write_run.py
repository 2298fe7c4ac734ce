"""Writes the difference between a run and what a decision made of it: changed rows only.

All rows are computed before the first is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from server.database.blobs import add_blobs
from server.database.events import add_events
from server.database.session import Statement, Writing
from server.database.step.change import Change
from server.database.step.facts import (
    AggregationFacts,
    ConfigFacts,
    DiscrepancyFacts,
    EnrolmentFacts,
    FailureFacts,
    UpdateFacts,
)
from server.database.step.write_round import round_statements
from server.database.tables import enrolments, runs
from server.lifecycle.effects import Record
from server.lifecycle.events import FailureReported
from server.lifecycle.state import Enrolment
from shared.schemas import RunStatus

__all__ = ["StaleVersion", "write"]

_OF_RUN = sa.bindparam("of_run", type_=sa.String)
_OF_CLIENT = sa.bindparam("of_client", type_=sa.String)
_SWAP = runs.update().where(
    runs.c.run == _OF_RUN, runs.c.version == sa.bindparam("of_version", type_=sa.BigInteger)
)
_ENROLMENT = enrolments.update().where(enrolments.c.run == _OF_RUN, enrolments.c.client == _OF_CLIENT)


class StaleVersion(Exception):
    """Another process moved the run since it was read: read again, decide again."""


def write(connection: Writing, change: Change) -> None:
    """All rows and events of the change; :class:`StaleVersion` and nothing written if the version moved."""
    run, blobs, events = _run_values(change), _new_blobs(change), _event_rows(change)
    statements = [*_enrolment_statements(change), *round_statements(connection, change)]
    if connection.execute(_SWAP, run).rowcount != 1:
        raise StaleVersion
    for statement, rows in statements:
        connection.execute(statement, rows)
    add_blobs(connection, blobs, change.now)
    add_events(connection, events, actor=change.actor, now=change.now)


# -------------------------------------------------------------------- the run


def _run_values(change: Change) -> dict[str, Any]:
    old, new, version = change.before.run, change.decision.run, change.before.version
    values: dict[str, Any] = {"of_run": change.run, "of_version": version, "version": version + 1}
    if (old.status, old.reason) != (new.status, new.reason):
        values |= {"status": new.status, "reason": new.reason}
    if old.completed_rounds != new.completed_rounds:
        values["completed_rounds"] = new.completed_rounds
    for name in ("highest_attempt", "rewound_rounds", "rewound_attempts"):
        if getattr(old, name) != getattr(new, name):
            values[name] = getattr(new, name)
    if isinstance(change.facts, ConfigFacts):
        config = change.facts.config.model_dump(mode="json")
        values |= {"config": config, "revision": change.before.revision + 1}
    if old.wait != new.wait:
        values["waiting_since"] = None if new.wait is None else new.wait.since
        values["waiting_until"] = None if new.wait is None else new.wait.until
    if old.status is RunStatus.ENROLLING and new.status.is_going:
        values["started_at"] = change.now
    if new.status.is_terminal and not old.status.is_terminal:
        values["finished_at"] = change.now
    if old.totals != new.totals:
        values["totals"] = None if new.totals is None else new.totals.model_dump(mode="json")
    return values


# -------------------------------------------------------------------- enrolments


def _enrolment_statements(change: Change) -> list[Statement]:
    known = {e.client: e for e in change.before.run.enrolments}
    statements: list[Statement] = []
    for enrolment in change.decision.run.enrolments:
        before = known.get(enrolment.client)
        values = _enrolment_values(change, before, enrolment)
        if before is None:
            row = {"run": change.run, "client": enrolment.client, "device": "", "enrolled_at": change.now}
            statements.append((enrolments.insert(), row | values))
        elif values:
            key = {"of_run": change.run, "of_client": enrolment.client}
            statements.append((_ENROLMENT, key | values))
    return statements


def _enrolment_values(change: Change, before: Enrolment | None, after: Enrolment) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if before != after:
        values = {
            "role": after.role,
            "status": after.status,
            "index": after.index,
            "examples": after.examples,
            "reason": after.reason,
            "approved_examples": after.approved_examples,
            "identity": after.identity,
        }
    if after.client == change.client:
        values |= _values_from_facts(change, before, after)
    return values


def _values_from_facts(change: Change, before: Enrolment | None, after: Enrolment) -> dict[str, Any]:
    """What the facts of this event say about the client's enrolment."""
    match change.facts:
        case EnrolmentFacts(device=device, left_out=left_out):
            # other data have another discrepancy
            forgotten = dict.fromkeys(("discrepancy", "discrepancy_metric", "grade", "epsilon"))
            has_other_data = before is not None and before.examples != after.examples
            told = {"device": device, "left_out": left_out, "enrolled_at": change.now}
            return told | (forgotten if has_other_data else {})
        case DiscrepancyFacts(metric=metric, value=value, grade=grade, epsilon=epsilon):
            return {
                "discrepancy": value,
                "discrepancy_metric": metric,
                "grade": grade,
                "epsilon": epsilon,
            }
        case FailureFacts(code=code) if isinstance(change.event, FailureReported):
            return {"last_error": f"{code}: {change.event.reason}"}
        case UpdateFacts() if after.client in change.before.troubled:
            return {"last_error": None}
    return {}


# -------------------------------------------------------------------- blobs and events


def _new_blobs(change: Change) -> Mapping[str, int]:
    """Bytes by digest."""
    match change.facts:
        case UpdateFacts(digest=digest, bytes=size):
            return {digest: size}
        case AggregationFacts(blobs=blobs):
            return blobs
    return {}


def _event_rows(change: Change) -> list[dict[str, Any]]:
    return [
        {
            "kind": effect.kind,
            "run": change.run,
            "round": effect.round,
            "client": effect.client,
            "actor": effect.client if change.takers else change.actor,
            "detail": effect.detail | _detail_from_facts(change, effect),
        }
        for effect in change.decision.effects
        if isinstance(effect, Record)
    ] + _missed_assistance(change)


def _missed_assistance(change: Change) -> list[dict[str, Any]]:
    """That a round went on without its assistant."""
    facts = change.facts
    if not isinstance(facts, AggregationFacts) or facts.assistance is None or facts.assistance.missed is None:
        return []
    event = change.event
    detail = {"attempt": getattr(event, "attempt", None), "reason": facts.assistance.missed}
    number = getattr(event, "round", None)
    return [
        {
            "kind": "assistance_missed",
            "run": change.run,
            "round": number,
            "client": None,
            "detail": detail,
        }
    ]


def _detail_from_facts(change: Change, record: Record) -> dict[str, Any]:
    match change.facts:
        case UpdateFacts(digest=digest, bytes=size) if record.kind == "update_received":
            return {"update": digest, "bytes": size}
        case FailureFacts(code=code) if record.kind in ("failure_reported", "client_declined"):
            return {"code": code}
        case AggregationFacts(model=str(model)) if record.kind == "round_completed":
            return {"model": model}
        case ConfigFacts() if record.kind == "run_changed":
            return {"revision": change.before.revision + 1}
    return {}
