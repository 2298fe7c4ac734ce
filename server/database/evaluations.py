"""Scores of models: by evaluators, and by participants of their own round."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from server.database.configs import require_run
from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import enrolments, evaluations, participants, rounds
from shared.problems import Conflict, Forbidden
from shared.schemas import EnrolmentStatus, EvaluationView, Metrics, Role, RoundStatus

__all__ = ["add_evaluation", "list_evaluations", "mean_accuracies"]


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
    if connection.insert_new(evaluations, key | values | {"at": now}) != 1:
        _require_same(connection, key, metrics)
        return False
    detail = {"loss": metrics.loss, "accuracy": metrics.accuracy, "examples": metrics.examples}
    event = key | {"kind": "evaluation_received", "detail": detail}
    add_events(connection, [event], actor=actor, now=now)
    return True


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
    require_run(connection, run)
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


def list_evaluations(
    connection: Reading, run: str, number: int | None = None, *, since: int = 0
) -> list[EvaluationView]:
    """By round, then by client; round 0 is the initial model."""
    chosen: sa.ColumnElement[bool] = evaluations.c.run == run
    chosen &= evaluations.c.round == number if number is not None else evaluations.c.round >= since
    statement = sa.select(evaluations).where(chosen).order_by(evaluations.c.round, evaluations.c.client)
    return [EvaluationView(**row._mapping) for row in connection.select(statement)]


def mean_accuracies(connection: Reading, run: str | None = None) -> dict[str, float]:
    """By run: the mean accuracy of its newest evaluated round, weighted by the evaluators' examples."""
    scored: sa.ColumnElement[bool] = evaluations.c.accuracy.is_not(None)
    if run is not None:
        scored &= evaluations.c.run == run
    newest = (
        sa.select(evaluations.c.run, sa.func.max(evaluations.c.round).label("round"))
        .where(scored)
        .group_by(evaluations.c.run)
        .subquery()
    )
    examples = sa.cast(evaluations.c.examples, sa.Double)
    statement = (
        sa.select(
            evaluations.c.run,
            sa.func.sum(evaluations.c.accuracy * examples) / sa.func.sum(examples),
        )
        .join(newest, sa.and_(evaluations.c.run == newest.c.run, evaluations.c.round == newest.c.round))
        .where(scored)
        .group_by(evaluations.c.run)
    )
    return {name: float(accuracy) for name, accuracy in connection.select(statement)}
