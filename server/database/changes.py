"""Writes the difference between a run and what a decision made of it: changed rows only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from server.database.facts import (
    AggregationFacts,
    DiscrepancyFacts,
    EnrolmentFacts,
    Facts,
    FailureFacts,
    UpdateFacts,
)
from server.database.journal import add_events
from server.database.session import Writing
from server.database.snapshots import Snapshot
from server.database.tables import Words, blobs, enrolments, participants, rounds, runs
from server.lifecycle.effects import Record
from server.lifecycle.events import Event, FailureReported, UpdateReceived
from server.lifecycle.machine import Decision, relative_sizes
from server.lifecycle.state import Enrolment, Participant, Round
from shared.schemas import ParticipantStatus, RoundStatus, RunStatus

if TYPE_CHECKING:
    from shared.weighting import LedgerEntry

__all__ = ["Change", "Outrun", "add_blobs", "write"]


class Outrun(Exception):
    """Another process moved the run since it was read: read again, decide again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A decision, what led to it and who."""

    before: Snapshot
    decision: Decision
    event: Event
    facts: Facts | None
    actor: str
    now: dt.datetime

    @property
    def run(self) -> str:
        return self.decision.run.id

    @property
    def client(self) -> str:
        """Whom the event is about; empty for events about the run."""
        return getattr(self.event, "client", "")


def write(connection: Writing, change: Change) -> None:
    """All rows and events of the change; raises :class:`Outrun` and writes nothing if the version moved."""
    _swap_run(connection, change)
    _write_enrolments(connection, change)
    for after in (*change.decision.ended, change.decision.run.round):
        if after is not None:
            _write_round(connection, change, after)
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
_OF_ROUND = sa.bindparam("of_round", type_=sa.BigInteger)
_OF_ATTEMPT = sa.bindparam("of_attempt", type_=sa.BigInteger)
_SWAP = runs.update().where(
    runs.c.run == _OF_RUN, runs.c.version == sa.bindparam("of_version", type_=sa.BigInteger)
)
_ENROLMENT = enrolments.update().where(enrolments.c.run == _OF_RUN, enrolments.c.client == _OF_CLIENT)
_ROUND = rounds.update().where(
    rounds.c.run == _OF_RUN, rounds.c.round == _OF_ROUND, rounds.c.attempt == _OF_ATTEMPT
)
_PARTICIPANT = participants.update().where(
    participants.c.run == _OF_RUN,
    participants.c.round == _OF_ROUND,
    participants.c.attempt == _OF_ATTEMPT,
    participants.c.client == _OF_CLIENT,
)
_LEDGER_ROW = (
    participants.update()
    .where(
        participants.c.run == _OF_RUN,
        participants.c.round == _OF_ROUND,
        participants.c.attempt == _OF_ATTEMPT,
        participants.c.index == sa.bindparam("of_index", type_=sa.BigInteger),
    )
    .values(reason=sa.func.coalesce(sa.bindparam("ledger_reason", type_=Words), participants.c.reason))
)


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
        raise Outrun


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


# -------------------------------------------------------------------- rounds and participants


def _write_round(connection: Writing, change: Change, after: Round) -> None:
    before = change.before.run.round
    if before is None or (before.number, before.attempt) != (after.number, after.attempt):
        _insert_round(connection, change, after)
        return
    if before == after and not isinstance(change.facts, AggregationFacts):
        return
    named = {"of_run": change.run, "of_round": after.number, "of_attempt": after.attempt}
    if before.status is not after.status:
        connection.execute(_ROUND, named | _round_values(change, before, after))
    _write_participants(connection, change, before, after, named)
    if isinstance(change.facts, AggregationFacts) and before.status is RoundStatus.AGGREGATING:
        rows = [named | _ledger_values(entry) for entry in change.facts.ledger]
        if rows:
            connection.execute(_LEDGER_ROW, rows)


def _round_values(change: Change, before: Round, after: Round) -> dict[str, Any]:
    values: dict[str, Any] = {"status": after.status, "reason": after.reason}
    if before.status is RoundStatus.COLLECTING:
        values["closed_at"] = change.now
    if after.status is RoundStatus.COMPLETED:
        values["completed_at"] = change.now
        if isinstance(change.facts, AggregationFacts):
            values |= {
                "model": change.facts.model,
                "scored_model": change.facts.scored,
                "broadcast": change.facts.broadcast,
                "private": change.facts.private,
            }
    return values


def _ledger_values(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "of_index": entry.index,
        "included": entry.included,
        "size_share": entry.size_share,
        "discrepancy": entry.discrepancy,
        "discrepancy_share": entry.discrepancy_share,
        "score": entry.score,
        "weight": entry.weight,
        "size_weight": entry.size_weight,
        "ledger_reason": entry.reason,
    }


def _write_participants(
    connection: Writing, change: Change, before: Round, after: Round, named: dict[str, Any]
) -> None:
    known = {p.client: p for p in before.participants}
    plain: list[dict[str, Any]] = []
    for participant in after.participants:
        if participant == known[participant.client]:
            continue
        values = {"of_client": participant.client, "status": participant.status, "reason": participant.reason}
        if more := _participant_values(change, participant):
            connection.execute(_PARTICIPANT, named | values | more)
        else:
            plain.append(named | values)
    if plain:
        connection.execute(_PARTICIPANT, plain)


def _participant_values(change: Change, participant: Participant) -> dict[str, Any]:
    if participant.client != change.client:
        return {}
    if participant.status is ParticipantStatus.TRAINING:
        return {"taken_at": change.now}
    if isinstance(change.facts, UpdateFacts) and isinstance(change.event, UpdateReceived):
        return {
            "update": change.facts.digest,
            "bytes": change.facts.bytes,
            "steps": change.facts.steps,
            "examples": change.facts.examples,
            "loss": change.facts.loss,
            "seconds": change.facts.seconds,
            "uploaded_at": change.now,
        }
    return {}


_NEWEST_RESULT = (
    sa.select(rounds.c.model, rounds.c.broadcast, rounds.c.private)
    .where(rounds.c.run == _OF_RUN, rounds.c.status == RoundStatus.COMPLETED)
    .order_by(rounds.c.round.desc())
    .limit(1)
)


def _insert_round(connection: Writing, change: Change, opened: Round) -> None:
    """The attempt with what its clients start from: the newest completed round, or the initial model."""
    result = connection.select(_NEWEST_RESULT, {"of_run": change.run}).one_or_none()
    model, broadcast, private = result if result is not None else (change.before.initial_model, None, None)
    key = {"run": change.run, "round": opened.number, "attempt": opened.attempt}
    row = key | {
        "status": opened.status,
        "reason": opened.reason,
        "opened_at": change.now,
        "deadline_at": opened.deadline_at,
        "trainers": _trainers(change),
        "start_model": model,
        "start_broadcast": broadcast,
        "start_private": private,
    }
    connection.execute(rounds.insert(), row)
    sizes = relative_sizes(change.decision.run)
    examples = {e.client: e.examples for e in change.decision.run.enrolments}
    connection.execute(
        participants.insert(),
        [
            key
            | {
                "client": p.client,
                "index": p.index,
                "status": p.status,
                "reason": p.reason,
                "examples": examples[p.client],
                "relative_size": sizes[p.client],
            }
            for p in opened.participants
        ],
    )


def _trainers(change: Change) -> list[tuple[int, int, str | None]]:
    """Index, examples and discrepancy (as text: JSON knows no infinity) of all who count now."""
    known = {client: value for client, (_, value) in change.before.discrepancies.items()}
    if isinstance(change.facts, DiscrepancyFacts):
        known[change.client] = change.facts.value
    present = relative_sizes(change.decision.run)
    return sorted(
        (e.index, e.examples, repr(known[e.client]) if e.client in known else None)
        for e in change.decision.run.enrolments
        if e.client in present and e.index is not None
    )


# -------------------------------------------------------------------- blobs


def add_blobs(connection: Writing, sizes: Mapping[str, int], now: dt.datetime) -> None:
    """Notes blobs, whose files are there already; the same content may be known."""
    rows: Iterable[dict[str, Any]] = [
        {"digest": digest, "bytes": size, "created_at": now} for digest, size in sorted(sizes.items())
    ]
    if rows:
        connection.execute(_ADD_BLOB[connection.dialect], list(rows))


_ADD_BLOB: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(blobs).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(blobs).on_conflict_do_nothing(),
}
