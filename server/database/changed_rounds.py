"""Writes what a decision changed in a round and its participants; opens the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from server.database.change import Change
from server.database.facts import AggregationFacts, DiscrepancyFacts, UpdateFacts
from server.database.session import Writing
from server.database.tables import Words, participants, rounds
from server.lifecycle.events import UpdateReceived
from server.lifecycle.machine import relative_sizes
from server.lifecycle.state import Participant, Round
from shared.schemas import ParticipantStatus, RoundStatus

if TYPE_CHECKING:
    from shared.weighting import LedgerEntry

__all__ = ["write_round"]

_OF_RUN = sa.bindparam("of_run", type_=sa.String)
_OF_CLIENT = sa.bindparam("of_client", type_=sa.String)
_OF_ROUND = sa.bindparam("of_round", type_=sa.BigInteger)
_OF_ATTEMPT = sa.bindparam("of_attempt", type_=sa.BigInteger)
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


def write_round(connection: Writing, change: Change, after: Round) -> None:
    before = change.before.run.round
    if before is None or (before.number, before.attempt) != (after.number, after.attempt):
        _insert_round(connection, change, after)
        return
    if before == after and not isinstance(change.facts, AggregationFacts):
        return
    named = {"of_run": change.run, "of_round": after.number, "of_attempt": after.attempt}
    if before.status is not after.status:
        connection.execute(_ROUND, named | _round_values(change, before, after))
    elif before.deadline_at != after.deadline_at:
        connection.execute(_ROUND, named | {"deadline_at": after.deadline_at})
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
