"""The rows that a decision changed in a round and its participants, and those of a round that it opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from server.database.session import Reading, Statement
from server.database.step.change import Change
from server.database.step.facts import (
    AggregationFacts,
    AssistanceFacts,
    DiscrepancyFacts,
    TravellingFacts,
    UpdateFacts,
)
from server.database.tables import (
    Words,
    are_of_one_attempt,
    assistances,
    evaluations,
    participants,
    rounds,
    shadows,
    travelling,
)
from server.lifecycle.events import RewindRequested, UpdateReceived
from server.lifecycle.state import Participant, Round
from server.lifecycle.views import relative_sizes
from shared.schemas import ParticipantStatus, RoundStatus
from shared.travelling import deal_models

if TYPE_CHECKING:
    from shared.weightings import LedgerEntry

__all__ = ["round_statements"]

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
_SUPERSEDE = (
    rounds.update()
    .where(rounds.c.run == _OF_RUN, rounds.c.round > _OF_ROUND, rounds.c.status == RoundStatus.COMPLETED)
    .values(status=RoundStatus.REWOUND)
)
_FORGET_SCORES = evaluations.delete().where(evaluations.c.run == _OF_RUN, evaluations.c.round > _OF_ROUND)
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


_SETTLED = assistances.update().where(
    assistances.c.run == _OF_RUN,
    assistances.c.round == _OF_ROUND,
    assistances.c.attempt == _OF_ATTEMPT,
)
_INCLUDED = (
    participants.update()
    .where(
        participants.c.run == _OF_RUN,
        participants.c.round == _OF_ROUND,
        participants.c.attempt == _OF_ATTEMPT,
        participants.c.status == ParticipantStatus.AGGREGATED,
    )
    .values(included=True)
)


def round_statements(connection: Reading, change: Change) -> list[Statement]:
    """What is to be written, in this order; read are only results of earlier rounds."""
    statements: list[Statement] = _rewind_statements(change)
    for after in (*change.decision.ended, change.decision.run.round):
        if after is None:
            continue
        before = change.before.run.round
        if before is not None and (before.number, before.attempt) == (after.number, after.attempt):
            statements += _update_round(change, before, after)
        else:
            start = _newest_result(connection, change)
            statements += _insert_round(change, after, start, _read_travelling(connection, change))
    return statements


def _rewind_statements(change: Change) -> list[Statement]:
    """Rounds behind which the run goes back keep all that they are but their status; scores go to the log."""
    if not isinstance(change.event, RewindRequested):
        return []
    later = {"of_run": change.run, "of_round": change.event.round}
    return [(_SUPERSEDE, later), (_FORGET_SCORES, later)]


# -------------------------------------------------------------------- a round that goes on or ends


def _update_round(change: Change, before: Round, after: Round) -> list[Statement]:
    if before == after and not isinstance(change.facts, AggregationFacts):
        return []
    key = {"of_run": change.run, "of_round": after.number, "of_attempt": after.attempt}
    statements: list[Statement] = []
    if before.status is not after.status:
        statements.append((_ROUND, key | _round_values(change, before, after)))
    elif _watched(before) != _watched(after):
        values = {"deadline_at": after.deadline_at, "reason": after.reason}
        statements.append((_ROUND, key | values | _secure_values(after)))
    statements += _update_participants(change, before, after, key)
    if isinstance(change.facts, AggregationFacts) and before.status is RoundStatus.AGGREGATING:
        rows = [key | _ledger_values(entry) for entry in change.facts.ledger]
        if rows:
            statements.append((_LEDGER_ROW, rows))
        if change.facts.shadows and after.status is RoundStatus.COMPLETED:
            statements.append((shadows.insert(), _shadow_rows(change, after, change.facts)))
        if change.facts.travelling and after.status is RoundStatus.COMPLETED:
            statements.append((travelling.insert(), _travelling_rows(change, after, change.facts)))
        if change.facts.assistance is not None:
            statements.append((_SETTLED, key | _assistance_values(change.facts.assistance)))
        if after.secure is not None:  # nobody's weight is known, but whose updates are in the sum
            statements.append((_INCLUDED, key))
    return statements


def _assistance_values(facts: AssistanceFacts) -> dict[str, Any]:
    return {"outcome": "used" if facts.missed is None else "missed", "reason": facts.missed}


def _shadow_rows(change: Change, round: Round, facts: AggregationFacts) -> list[dict[str, Any]]:
    key = {"run": change.run, "round": round.number, "attempt": round.attempt}
    # JSON has no numbers as keys
    return [
        key | asdict(shadow) | {"weights": {str(index): p for index, p in shadow.weights.items()}}
        for shadow in facts.shadows
    ]


def _travelling_rows(change: Change, round: Round, facts: AggregationFacts) -> list[dict[str, Any]]:
    key = {"run": change.run, "round": round.number, "attempt": round.attempt}
    return [key | {"number": at} | asdict(model) for at, model in enumerate(facts.travelling)]


def _round_values(change: Change, before: Round, after: Round) -> dict[str, Any]:
    values: dict[str, Any] = {"status": after.status, "reason": after.reason} | _secure_values(after)
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
                "memory": dict(change.facts.memory) or None,
                "adjustment": asdict(change.facts.adjustment) if change.facts.adjustment else None,
                "sums": dict(change.facts.sums) or None,
            }
    return values


def _watched(round: Round) -> tuple[Any, ...]:
    """What may change while the status stays."""
    return round.deadline_at, round.reason, round.secure


def _secure_values(round: Round) -> dict[str, Any]:
    """Nothing for a round whose updates arrive in clear."""
    secure = round.secure
    return {} if secure is None else {"step": secure.phase.value, "secure": secure.model_dump_json()}


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
        "uncapped_weight": entry.uncapped_weight,
        "norm": entry.norm,
        "largest_entry": entry.largest_entry,
        "cosine": entry.cosine,
        "share": entry.share,
        "details": dict(entry.details) or None,
        "ledger_reason": entry.reason,
    }


def _update_participants(change: Change, before: Round, after: Round, key: dict[str, Any]) -> list[Statement]:
    """Rows of which the same columns change are one statement."""
    known = {p.client: p for p in before.participants}
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for participant in after.participants:
        if participant == known[participant.client]:
            continue
        row = key | {
            "of_client": participant.client,
            "status": participant.status,
            "reason": participant.reason,
            "answered": participant.answered,
        }
        row |= _participant_values(change, participant)
        rows.setdefault(tuple(row), []).append(row)
    return [(_PARTICIPANT, alike) for alike in rows.values()]


def _participant_values(change: Change, participant: Participant) -> dict[str, Any]:
    if participant.client not in change.clients:
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
            "start_loss": change.facts.start_loss,
            "end_loss": change.facts.end_loss,
            "epsilon": change.facts.epsilon,
            "uploaded_at": change.now,
        }
    return {}


# -------------------------------------------------------------------- a round that opens

_NEWEST_RESULT = (
    sa.select(rounds.c.model, rounds.c.broadcast, rounds.c.private, rounds.c.memory)
    .where(
        rounds.c.run == _OF_RUN,
        rounds.c.status == RoundStatus.COMPLETED,
        rounds.c.round > 0,
        rounds.c.round <= sa.bindparam("completed", type_=sa.BigInteger),
        # where models travel on, nobody starts from their average
        ~sa.select(travelling.c.run).where(are_of_one_attempt(travelling, rounds)).exists(),
    )
    .order_by(rounds.c.round.desc())
    .limit(1)
)
_Result = dict[str, Any]  # the columns of a round that say what it starts from


def _newest_result(connection: Reading, change: Change) -> _Result:
    """What a new attempt starts from: the newest completed round that averaged, or the initial model."""
    facts = change.facts
    completed = change.decision.run.completed_rounds != change.before.run.completed_rounds
    if completed and isinstance(facts, AggregationFacts) and not facts.travelling:  # by this very change
        return _start(facts.model, facts.broadcast, facts.private, dict(facts.memory) or None)
    found = {"of_run": change.run, "completed": change.decision.run.completed_rounds}
    row = connection.select(_NEWEST_RESULT, found).one_or_none()
    return _start(change.before.initial_model, None, None, None) if row is None else _start(*row)


def _start(
    model: str | None, broadcast: str | None, private: str | None, memory: dict[str, Any] | None
) -> _Result:
    return {
        "start_model": model,
        "start_broadcast": broadcast,
        "start_private": private,
        "start_memory": memory,
    }


_TRAVELLING = (
    sa.select(travelling.c.model, travelling.c.client, travelling.c.earned)
    .join(rounds, are_of_one_attempt(rounds, travelling))
    .where(
        travelling.c.run == _OF_RUN,
        travelling.c.round == sa.bindparam("completed", type_=sa.BigInteger),
        rounds.c.status == RoundStatus.COMPLETED,
    )
    .order_by(travelling.c.number)
)


def _read_travelling(connection: Reading, change: Change) -> tuple[TravellingFacts, ...]:
    """The models that travel now, by number; none in a run that averages in every round."""
    if change.before.config.average_every == 1:
        return ()
    facts = change.facts
    completed = change.decision.run.completed_rounds
    if completed != change.before.run.completed_rounds and isinstance(facts, AggregationFacts):
        return facts.travelling
    rows = connection.select(_TRAVELLING, {"of_run": change.run, "completed": completed})
    return tuple(TravellingFacts(*row) for row in rows)


def _deal(change: Change, opened: Round, models: Sequence[TravellingFacts]) -> dict[int, dict[str, Any]]:
    """By client index, what the columns say of the model that it starts from."""
    if not models:
        return {}
    indexes = sorted(p.index for p in opened.participants)
    dealt = deal_models(change.decision.run.policy.seed, opened.number, len(models), len(indexes))
    return {
        index: {
            "start_model": models[number].model,
            "start_number": number,
            "started_from": models[number].client,
        }
        for index, number in zip(indexes, dealt, strict=True)
        if number is not None
    }


_FROM_THE_AVERAGE = {"start_model": None, "start_number": None, "started_from": None}


def _insert_round(
    change: Change, opened: Round, start: _Result, models: Sequence[TravellingFacts]
) -> list[Statement]:
    key = {"run": change.run, "round": opened.number, "attempt": opened.attempt}
    row = key | {
        "status": opened.status,
        "reason": opened.reason,
        "opened_at": change.now,
        "deadline_at": opened.deadline_at,
        "trainers": _trainers(change),
        **start,
        **_secure_values(opened),
    }
    sizes = relative_sizes(change.decision.run)
    examples = {e.client: e.examples for e in change.decision.run.enrolments}
    dealt = _deal(change, opened, models)
    invited = [
        key
        | dealt.get(p.index, _FROM_THE_AVERAGE)
        | {
            "client": p.client,
            "index": p.index,
            "status": p.status,
            "reason": p.reason,
            "examples": examples[p.client],
            "relative_size": sizes[p.client],
        }
        for p in opened.participants
    ]
    return [(rounds.insert(), row), (participants.insert(), invited)]


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
