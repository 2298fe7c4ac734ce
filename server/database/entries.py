"""Rows that are not transitions of the state machine: new runs, evaluations, heartbeats."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from server.database.changes import add_blobs
from server.database.journal import add_events
from server.database.session import Reading, Writing
from server.database.snapshots import no_such_run
from server.database.tables import enrolments, evaluations, participants, rounds, runs
from shared.config import RunConfig
from shared.problems import Conflict, Forbidden, NameTaken
from shared.schemas import (
    EnrolmentStatus,
    Metrics,
    ParticipantStatus,
    Progress,
    Role,
    RoundStatus,
    RunStatus,
    TensorSpec,
)

__all__ = ["add_evaluation", "create_run", "heartbeat", "record"]

# the driver knows how many rows an INSERT made; SQLAlchemy forgets it unless asked
_COUNTED = {"preserve_rowcount": True}
_ADD_RUN: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(runs)
    .on_conflict_do_nothing(index_elements=["run"])
    .execution_options(**_COUNTED),
    "postgresql": postgresql.insert(runs)
    .on_conflict_do_nothing(index_elements=["run"])
    .execution_options(**_COUNTED),
}


def create_run(
    connection: Writing,
    config: RunConfig,
    *,
    classes: Sequence[str],
    manifest: Sequence[TensorSpec],
    initial_model: str,
    initial_bytes: int,
    actor: str,
    now: dt.datetime,
) -> None:
    """An enrolling run; the initial model's blob is stored already. Raises :class:`NameTaken`."""
    row = {
        "run": config.name,
        "version": 0,
        "status": RunStatus.ENROLLING,
        "config": config.model_dump(mode="json"),
        "classes": list(classes),
        "manifest": [spec.model_dump(mode="json") for spec in manifest],
        "completed_rounds": 0,
        "initial_model": initial_model,
        "created_at": now,
    }
    if connection.execute(_ADD_RUN[connection.dialect], row).rowcount != 1:
        raise NameTaken(f"there is a run named {config.name!r} already", hint="Choose another name.")
    add_blobs(connection, {initial_model: initial_bytes}, now)
    detail = {"initial_model": initial_model, "algorithm": config.algorithm.name, "task": config.task}
    add_events(
        connection, [{"kind": "run_created", "run": config.name, "detail": detail}], actor=actor, now=now
    )


# -------------------------------------------------------------------- evaluations


def add_evaluation(
    connection: Writing, run: str, number: int, client: str, metrics: Metrics, *, actor: str, now: dt.datetime
) -> bool:
    """Whether it is new: the same values again change nothing.

    Raises :class:`NotFound` for a run that is not there, :class:`Forbidden` for a client that is no part of
    it, :class:`Conflict` for other values than before and for a round that has made no model.
    """
    _require_member(connection, run, number, client)
    _require_model(connection, run, number)
    key = {"run": run, "round": number, "client": client}
    values = metrics.model_dump(mode="json")
    added = connection.execute(_ADD_EVALUATION[connection.dialect], key | values | {"at": now})
    if added.rowcount != 1:
        _require_same(connection, key, metrics)
        return False
    detail = {"loss": metrics.loss, "accuracy": metrics.accuracy, "examples": metrics.examples}
    event = key | {"kind": "evaluation_received", "detail": detail}
    add_events(connection, [event], actor=actor, now=now)
    return True


_ADD_EVALUATION: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(evaluations).on_conflict_do_nothing().execution_options(**_COUNTED),
    "postgresql": postgresql.insert(evaluations).on_conflict_do_nothing().execution_options(**_COUNTED),
}


def _require_member(connection: Reading, run: str, number: int, client: str) -> None:
    """An evaluator of the run that has not left it, or a participant of the round."""
    evaluator = sa.select(enrolments.c.client).where(
        enrolments.c.run == run,
        enrolments.c.client == client,
        enrolments.c.role == Role.EVALUATOR,
        enrolments.c.status == EnrolmentStatus.READY,
    )
    participant = sa.select(participants.c.client).where(
        participants.c.run == run, participants.c.round == number, participants.c.client == client
    )
    if connection.select(sa.select(sa.or_(evaluator.exists(), participant.exists()))).scalar():
        return
    raise Forbidden(
        f"{client!r} is neither an evaluator of run {run!r} nor a participant of round {number}",
        hint="Enrol as an evaluator first.",
    )


def _require_model(connection: Reading, run: str, number: int) -> None:
    if connection.select(sa.select(runs.c.run).where(runs.c.run == run)).scalar() is None:
        raise no_such_run(run)
    completed = sa.select(rounds.c.round).where(
        rounds.c.run == run, rounds.c.round == number, rounds.c.status == RoundStatus.COMPLETED
    )
    if number != 0 and connection.select(completed).scalar() is None:
        raise Conflict(
            f"round {number} of run {run!r} is not completed: there is no model to evaluate",
            hint="Evaluate what an assignment asks for; round 0 is the initial model.",
        )


def _require_same(connection: Reading, key: Mapping[str, Any], metrics: Metrics) -> None:
    statement = sa.select(evaluations).filter_by(**key)
    row = connection.select(statement).one()
    stored = Metrics(
        loss=row.loss,
        accuracy=row.accuracy,
        examples=row.examples,
        per_category=row.per_category,
        extra=row.extra,
    )
    if stored != metrics:
        names = [name for name in Metrics.model_fields if getattr(stored, name) != getattr(metrics, name)]
        raise Conflict(
            f"{key['client']!r} has evaluated round {key['round']} of run {key['run']!r} already,"
            f" with other values of {', '.join(names)} (loss {stored.loss!r})",
            hint="The first values stand.",
        )


# -------------------------------------------------------------------- heartbeats

_COLLECTING = (
    sa.select(rounds.c.run)
    .where(
        rounds.c.run == participants.c.run,
        rounds.c.round == participants.c.round,
        rounds.c.attempt == participants.c.attempt,
        rounds.c.status == RoundStatus.COLLECTING,
    )
    .exists()
)
_HEARTBEAT = participants.update().where(
    participants.c.run == sa.bindparam("of_run", type_=sa.String),
    participants.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
    participants.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
    participants.c.client == sa.bindparam("of_client", type_=sa.String),
    participants.c.status.in_([ParticipantStatus.INVITED, ParticipantStatus.TRAINING]),
    _COLLECTING,
)


def heartbeat(
    connection: Writing, run: str, number: int, client: str, progress: Progress, now: dt.datetime
) -> bool:
    """Whether the client's update is still wanted; heartbeats are no transition and leave no event."""
    values = {
        "of_run": run,
        "of_round": number,
        "of_attempt": progress.attempt,
        "of_client": client,
        "progress": progress.model_dump(mode="json"),
        "heartbeat_at": now,
    }
    return connection.execute(_HEARTBEAT, values).rowcount == 1


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
    known = sa.select(runs.c.run).where(runs.c.run == run)
    if run is not None and connection.select(known).scalar() is None:
        raise no_such_run(run)
    row = {"kind": kind, "run": run, "round": round, "client": client, "detail": detail}
    add_events(connection, [row], actor=actor, now=now)
