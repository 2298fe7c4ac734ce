"""What an aggregation starts from, and which are under way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from server.database.assistances import StoredAssistance, find_assistance, is_gone
from server.database.configs import Configs
from server.database.session import Reading
from server.database.step.facts import TravellingFacts
from server.database.tables import are_of_one_attempt, participants, rounds, runs, travelling
from shared.config import RunConfig
from shared.problems import NotFound
from shared.schemas import ParticipantStatus, RoundStatus, TensorSpec
from shared.secure.coordinator import Coordinator
from shared.weightings.base import Memory

__all__ = ["AggregationInput", "OpenAggregation", "Trainer", "Update", "list_aggregating", "read_input"]

Row = Any  # of a select with many columns: checked by what it is made into


@dataclass(frozen=True, slots=True)
class Trainer:
    """An enrolled trainer as it counted when the round opened."""

    index: int
    examples: int
    discrepancy: float | None


@dataclass(frozen=True, slots=True)
class Update:
    """An update that arrived in the round; ``relative_size`` is omega_k as the client was told it.

    ``start_model`` and ``start_number``: of the travelling model that it began with (None: the round's).
    """

    index: int
    client: str
    digest: str
    bytes: int
    examples: int
    relative_size: float
    steps: int
    discrepancy: float | None
    start_loss: float | None
    end_loss: float | None
    start_model: str | None = None
    start_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationInput:
    """All that decides a round's result: stored rows only, so that a replay finds the same.

    ``updates`` and ``trainers`` are in index order; ``trainers`` are all N enrolled at the opening.
    ``travelling`` are the models that travelled then, by number.
    ``assistance`` is what the run's assistant was asked, if it was already; ``assistant_gone`` why it will
    not answer any more, if so.
    """

    run: str
    round: int
    attempt: int
    config: RunConfig
    manifest: tuple[TensorSpec, ...]
    start_model: str
    start_broadcast: str | None
    start_private: str | None
    start_memory: Memory
    updates: tuple[Update, ...]
    trainers: tuple[Trainer, ...]
    secure: Coordinator | None = None
    travelling: tuple[TravellingFacts, ...] = ()
    assistance: StoredAssistance | None = None
    assistant_gone: str | None = None

    @property
    def clients(self) -> int:
        return len(self.trainers)


@dataclass(frozen=True, slots=True)
class OpenAggregation:
    """A round whose aggregation is under way, here or in another process, or was lost with one."""

    run: str
    round: int
    attempt: int
    since: dt.datetime


def list_aggregating(connection: Reading) -> list[OpenAggregation]:
    """Rounds being aggregated, oldest first."""
    statement = (
        sa.select(rounds.c.run, rounds.c.round, rounds.c.attempt, rounds.c.closed_at)
        .where(rounds.c.status == RoundStatus.AGGREGATING)
        .order_by(rounds.c.closed_at, rounds.c.run)
    )
    return [OpenAggregation(*row) for row in connection.select(statement)]


_OF_RUN = sa.bindparam("of_run", type_=sa.String)
_OF_ROUND = sa.bindparam("of_round", type_=sa.BigInteger)
_OF_ATTEMPT = sa.bindparam("of_attempt", type_=sa.BigInteger)
_ROUND = sa.select(rounds).where(
    rounds.c.run == _OF_RUN, rounds.c.round == _OF_ROUND, rounds.c.attempt == _OF_ATTEMPT
)
_MANIFEST = sa.select(runs.c.manifest, runs.c.revision).where(runs.c.run == _OF_RUN)
_ARRIVED = (
    sa.select(participants)
    .where(
        participants.c.run == _OF_RUN,
        participants.c.round == _OF_ROUND,
        participants.c.attempt == _OF_ATTEMPT,
        # what counted when the round was aggregated: a replay takes rejected updates out as the round did
        participants.c.status.in_([status for status in ParticipantStatus if status.is_accepted]),
    )
    .order_by(participants.c.index)
)
_TRAVELLING = (
    sa.select(travelling.c.model, travelling.c.client, travelling.c.earned)
    .join(rounds, are_of_one_attempt(rounds, travelling))
    .where(
        travelling.c.run == _OF_RUN,
        travelling.c.round == _OF_ROUND,
        rounds.c.status == RoundStatus.COMPLETED,
    )
    .order_by(travelling.c.number)
)


def read_input(
    connection: Reading, run: str, number: int, attempt: int, configs: Configs
) -> AggregationInput:
    """Of an aggregating round, and of a completed one for its replay. Raises :class:`NotFound`."""
    key = {"of_run": run, "of_round": number, "of_attempt": attempt}
    round_: Row = connection.select(_ROUND, key).one_or_none()
    if round_ is None:
        raise NotFound(f"run {run!r} has no attempt {attempt} of round {number}")
    manifest, revision = connection.select(_MANIFEST, {"of_run": run}).one()
    trainers = tuple(
        Trainer(index, examples, None if text is None else float(text))
        for index, examples, text in round_.trainers
    )
    discrepancies = {trainer.index: trainer.discrepancy for trainer in trainers}
    config = configs.of(connection, run, revision)
    return AggregationInput(
        run=run,
        round=number,
        attempt=attempt,
        config=config,
        manifest=tuple(TensorSpec.model_validate(spec) for spec in manifest),
        start_model=round_.start_model,
        start_broadcast=round_.start_broadcast,
        start_private=round_.start_private,
        start_memory=_read_memory(round_.start_memory),
        updates=tuple(_update(row, discrepancies) for row in connection.select(_ARRIVED, key)),
        trainers=trainers,
        secure=None if round_.secure is None else Coordinator.model_validate_json(round_.secure),
        travelling=_list_travelling(connection, config, run, number - 1),
        assistance=find_assistance(connection, (run, number, attempt)) if config.assistant else None,
        assistant_gone=is_gone(connection, run, config),
    )


def _list_travelling(
    connection: Reading, config: RunConfig, run: str, number: int
) -> tuple[TravellingFacts, ...]:
    """As round ``number`` left them; a later one that counts started from them."""
    if config.average_every == 1:
        return ()
    found = connection.select(_TRAVELLING, {"of_run": run, "of_round": number})
    return tuple(TravellingFacts(*row) for row in found)


def _update(row: Row, discrepancies: Mapping[int, float | None]) -> Update:
    index = row._mapping["index"]  # `row.index` is a method of rows
    return Update(
        index=index,
        client=row.client,
        digest=row.update,
        bytes=row.bytes,
        examples=row.examples,
        relative_size=row.relative_size,
        steps=row.steps,
        discrepancy=discrepancies.get(index),
        start_loss=row.start_loss,
        end_loss=row.end_loss,
        start_model=row.start_model,
        start_number=row.start_number,
    )


def _read_memory(stored: Mapping[str, Mapping[str, float]] | None) -> Memory:
    """JSON has no numbers as keys."""
    return {name: {int(index): v for index, v in kept.items()} for name, kept in (stored or {}).items()}
