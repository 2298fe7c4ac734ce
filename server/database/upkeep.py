"""What the coordinator asks for its own work: deadlines, aggregations, blobs, figures. Reads only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from server.database.accounts import GONE
from server.database.facts import AggregationInput, OpenAggregation, Trainer, Update
from server.database.session import Reading
from server.database.snapshots import Configs
from server.database.tables import blobs, clients, enrolments, evaluations, events, participants, rounds, runs
from shared.problems import NotFound
from shared.schemas import ParticipantStatus, RoundStatus, TensorSpec

__all__ = [
    "aggregating",
    "aggregation_input",
    "blob_readable",
    "collecting",
    "counts",
    "last_sign_of_life",
    "overdue",
    "referenced_blobs",
]

Row = Any


_COLLECTING = sa.select(rounds.c.run).where(rounds.c.status == RoundStatus.COLLECTING).order_by(rounds.c.run)


def overdue(connection: Reading, now: dt.datetime) -> list[str]:
    """Runs whose collecting round is past its deadline."""
    return list(connection.select(_COLLECTING.where(rounds.c.deadline_at <= now)).scalars())


def collecting(connection: Reading) -> list[str]:
    """Runs whose round waits for updates."""
    return list(connection.select(_COLLECTING).scalars())


def last_sign_of_life(connection: Reading) -> dt.datetime | None:
    """When something last came in or happened, by any coordinator; None before the first event."""
    columns = (events.c.at, clients.c.last_seen_at, participants.c.heartbeat_at)
    found = [connection.select(sa.select(sa.func.max(column))).scalar_one() for column in columns]
    return max((at for at in found if at is not None), default=None)


def aggregating(connection: Reading) -> list[OpenAggregation]:
    """Rounds being aggregated, oldest first."""
    statement = (
        sa.select(rounds.c.run, rounds.c.round, rounds.c.attempt, rounds.c.closed_at)
        .where(rounds.c.status == RoundStatus.AGGREGATING)
        .order_by(rounds.c.closed_at, rounds.c.run)
    )
    return [OpenAggregation(*row) for row in connection.select(statement)]


# what counted when the round was aggregated: a replay takes rejected updates out as the round did
_ARRIVED = (ParticipantStatus.UPLOADED, ParticipantStatus.AGGREGATED)


def aggregation_input(
    connection: Reading, run: str, number: int, attempt: int, configs: Configs
) -> AggregationInput:
    """Of an aggregating round, and of a completed one for its replay. Raises :class:`NotFound`."""
    key = {"run": run, "round": number, "attempt": attempt}
    round_: Row = connection.select(sa.select(rounds).filter_by(**key)).one_or_none()
    if round_ is None:
        raise NotFound(f"run {run!r} has no attempt {attempt} of round {number}")
    manifest = connection.select(sa.select(runs.c.manifest).where(runs.c.run == run)).scalar_one()
    trainers = tuple(
        Trainer(index, examples, None if text is None else float(text))
        for index, examples, text in round_.trainers
    )
    found = sa.select(participants).filter_by(**key).where(participants.c.status.in_(_ARRIVED))
    arrived = connection.select(found.order_by(participants.c.index))
    discrepancies = {trainer.index: trainer.discrepancy for trainer in trainers}
    return AggregationInput(
        run=run,
        round=number,
        attempt=attempt,
        config=configs.of(connection, run),
        manifest=tuple(TensorSpec.model_validate(spec) for spec in manifest),
        start_model=round_.start_model,
        start_broadcast=round_.start_broadcast,
        start_private=round_.start_private,
        updates=tuple(_update(row, discrepancies) for row in arrived),
        trainers=trainers,
    )


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
    )


# -------------------------------------------------------------------- blobs

_KEEP = runs.c.config["keep_updates"].as_integer()
_KEPT_UPDATES = (
    sa.select(participants.c.update)
    .distinct()
    .select_from(participants.join(rounds).join(runs, runs.c.run == rounds.c.run))
    .where(
        participants.c.update.is_not(None),
        sa.or_(
            _KEEP.is_(None),
            rounds.c.round > runs.c.completed_rounds - _KEEP,  # attempts that were abandoned go with theirs
            rounds.c.status.in_((RoundStatus.COLLECTING, RoundStatus.AGGREGATING)),
        ),
    )
)


def referenced_blobs(connection: Reading) -> set[str]:
    """Every blob that a row names, but for updates past their run's ``keep_updates``.

    All others may be collected.
    """
    columns = (
        runs.c.initial_model,
        rounds.c.start_model,
        rounds.c.start_broadcast,
        rounds.c.start_private,
        rounds.c.model,
        rounds.c.scored_model,
        rounds.c.broadcast,
        rounds.c.private,
    )
    named = set(connection.select(_KEPT_UPDATES).scalars())
    for column in columns:
        named.update(connection.select(sa.select(column).distinct().where(column.is_not(None))).scalars())
    return named


_CLIENT = sa.bindparam("of_client", type_=sa.String)
_DIGEST = sa.bindparam("of_digest", type_=sa.String)
# what a round starts from is an initial model or an earlier round's result
_READABLE = sa.union_all(
    *(
        sa.select(enrolments.c.client)
        .join(table, table.c.run == enrolments.c.run)
        .where(
            table.c[column] == _DIGEST,
            enrolments.c.client == _CLIENT,
            enrolments.c.status.not_in(GONE),
        )
        for table, column in (
            (rounds, "model"),
            (rounds, "broadcast"),
            (rounds, "scored_model"),
            (runs, "initial_model"),
        )
    )
).subquery("readable")


def blob_readable(connection: Reading, client: str, digest: str) -> bool:
    """Whether a client may download it: models and broadcasts of runs in which it is enrolled.

    Never an update, which is another client's, nor the coordinator's private state.
    """
    named = {"of_client": client, "of_digest": digest}
    return connection.select(sa.select(_READABLE).limit(1), named).first() is not None


# -------------------------------------------------------------------- figures


def counts(connection: Reading) -> dict[str, dict[str, int]]:
    """Figures for the metrics, by noun and status: ``counts["runs"]["running"]``; absent is 0."""
    found: dict[str, dict[str, int]] = {}
    for table in (runs, rounds, participants, enrolments):
        statement = sa.select(table.c.status, sa.func.count()).group_by(table.c.status)
        found[table.name] = {str(status): number for status, number in connection.select(statement)}
    revoked = sa.func.count(clients.c.revoked_at)
    total, gone = connection.select(sa.select(sa.func.count(), revoked).select_from(clients)).one()
    found["clients"] = {"registered": total - gone, "revoked": gone}
    number, size = connection.select(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(blobs.c.bytes), 0)).select_from(blobs)
    ).one()
    found["blobs"] = {"number": number, "bytes": int(size)}
    for table in (evaluations, events):
        statement = sa.select(sa.func.count()).select_from(table)
        found[table.name] = {"number": connection.select(statement).scalar_one()}
    return found
