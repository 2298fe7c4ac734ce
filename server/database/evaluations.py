"""Scores of models: by evaluators, and by participants of their own round."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from server.database.configs import Configs, require_run
from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import enrolments, evaluations, participants, rounds, runs
from shared.config import ScoreRule
from shared.problems import Conflict, Forbidden, InvalidRequest
from shared.schemas import EnrolmentStatus, EvaluationView, Metrics, Role, RoundStatus
from shared.scores import combine, summarise

__all__ = [
    "add_evaluation",
    "counts_for_headline",
    "list_evaluations",
    "make_evaluation",
    "read_chosen",
    "read_headlines",
]


def add_evaluation(
    connection: Writing,
    run: str,
    number: int,
    client: str,
    metrics: Metrics,
    model: str | None = None,
    *,
    actor: str,
    now: dt.datetime,
) -> bool:
    """Whether it is new: the same values again change nothing. ``model``: what was scored, if that was said.

    Raises :class:`NotFound` for a run that is not there, :class:`Forbidden` for a client that is no part of
    it, :class:`InvalidRequest` for another number of examples than an evaluator is admitted with,
    :class:`Conflict` for other values than before, for a round that has made no model, and for another
    model than the round's.
    """
    _require_member(connection, run, number, client, metrics)
    _require_model(connection, run, number, model)
    key = {"run": run, "round": number, "client": client}
    values = metrics.model_dump(mode="json")
    values["shadows"] = values["shadows"] or None
    if connection.insert_new(evaluations, key | values | {"at": now}) != 1:
        _require_same(connection, key, metrics)
        return False
    detail = {"loss": metrics.loss, "accuracy": metrics.accuracy, "examples": metrics.examples}
    event = key | {"kind": "evaluation_received", "detail": detail}
    add_events(connection, [event], actor=actor, now=now)
    return True


def _require_member(connection: Reading, run: str, number: int, client: str, metrics: Metrics) -> None:
    """An evaluator, with the size that it is admitted with; or a participant of the round."""
    evaluator = sa.select(enrolments.c.examples).where(
        enrolments.c.run == run,
        enrolments.c.client == client,
        enrolments.c.role == Role.EVALUATOR,
        enrolments.c.status == EnrolmentStatus.READY,
    )
    admitted = connection.select(evaluator).scalar()
    if admitted is not None and admitted != metrics.examples:
        raise InvalidRequest(
            f"the model was scored on {metrics.examples} examples, "
            f"but {client!r} is enrolled with {admitted}",
            hint="Leave the run and enrol again if the test data have changed.",
        )
    participant = sa.select(participants.c.client).where(
        participants.c.run == run, participants.c.round == number, participants.c.client == client
    )
    if admitted is not None or connection.select(participant.limit(1)).scalar() is not None:
        return
    raise Forbidden(
        f"{client!r} is neither an evaluator of run {run!r} nor a participant of round {number}",
        hint="Enrol as an evaluator first.",
    )


def _require_model(connection: Reading, run: str, number: int, model: str | None) -> None:
    """A round that was rewound may have another model by the time at which its score comes."""
    require_run(connection, run)
    wanted = sa.select(runs.c.initial_model).where(runs.c.run == run)
    if number != 0:
        wanted = sa.select(rounds.c.scored_model).where(
            rounds.c.run == run, rounds.c.round == number, rounds.c.status == RoundStatus.COMPLETED
        )
    found = connection.select(wanted).scalar()
    if found is None:
        raise Conflict(
            f"round {number} of run {run!r} is not completed: there is no model to evaluate",
            hint="Evaluate what an assignment asks for; round 0 is the initial model.",
        )
    if model is not None and model != found:
        raise Conflict(
            f"the model of round {number} of run {run!r} is {found}, and {model} was scored",
            hint="Drop this score and wait for the next assignment: the run has gone back meanwhile.",
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
        confusion=row.confusion,
        shadows=row.shadows or {},
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
    return [make_evaluation(row) for row in connection.select(statement)]


def make_evaluation(row: sa.Row[Any]) -> EvaluationView:
    """Of a whole row of ``evaluations``."""
    return EvaluationView(**{**row._mapping, "shadows": row.shadows or {}})


def counts_for_headline() -> sa.ColumnElement[bool]:
    """Of an evaluation: its client is an evaluator, and was not refused since."""
    return (
        sa.select(enrolments.c.client)
        .where(
            enrolments.c.run == evaluations.c.run,
            enrolments.c.client == evaluations.c.client,
            enrolments.c.role == Role.EVALUATOR,
            enrolments.c.status != EnrolmentStatus.REFUSED,
        )
        .exists()
    )


def read_headlines(connection: Reading, configs: Configs, run: str | None = None) -> dict[str, float]:
    """By run: the accuracy of the newest round that enough evaluators have scored, by the run's rule.

    Enough are half of those who have scored any round: the first to answer does not speak for all.
    """
    scored: sa.ColumnElement[bool] = evaluations.c.accuracy.is_not(None)
    if run is not None:
        scored &= evaluations.c.run == run
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    rules = {}
    for row in _read_newest(connection, scored):
        found[row.run].append((row.accuracy, row.examples))
        rules[row.run] = configs.of(connection, row.run, row.revision).combine_scores
    return {name: summarise(scores, rules[name]) for name, scores in found.items()}


def read_chosen(
    connection: Reading, chosen: Mapping[str, str], rules: Mapping[str, ScoreRule]
) -> dict[str, float]:
    """By run: the score that the run chose to be shown first, of its newest round that enough have scored.

    ``chosen`` has the score's name by run, ``rules`` how several evaluators' are made one.
    """
    found: dict[str, list[tuple[float | None, int]]] = defaultdict(list)
    if chosen:
        for row in _read_newest(connection, evaluations.c.run.in_(chosen)):
            name = chosen[row.run]
            value = row.loss if name == "loss" else row.extra.get(name)
            found[row.run].append((value, row.examples))
    combined = {run: combine(scores, rules[run]) for run, scores in found.items()}
    return {run: value for run, value in combined.items() if value is not None}


def _read_newest(connection: Reading, which: sa.ColumnElement[bool]) -> Sequence[sa.Row[Any]]:
    """Of each run the evaluations of the newest round that half of its evaluators have scored."""
    scored = which & counts_for_headline()
    of_run = (
        sa.select(evaluations.c.run, sa.func.count(evaluations.c.client.distinct()).label("evaluators"))
        .where(scored)
        .group_by(evaluations.c.run)
        .subquery()
    )
    of_round = (
        sa.select(evaluations.c.run, evaluations.c.round)
        .join(of_run, of_run.c.run == evaluations.c.run)
        .where(scored)
        .group_by(evaluations.c.run, evaluations.c.round, of_run.c.evaluators)
        .having(2 * sa.func.count() >= of_run.c.evaluators)
        .subquery()
    )
    newest = (
        sa.select(of_round.c.run, sa.func.max(of_round.c.round).label("round"))
        .group_by(of_round.c.run)
        .subquery()
    )
    names = ("run", "accuracy", "loss", "examples", "extra")
    columns = (*(evaluations.c[name] for name in names), runs.c.revision)
    newest_round = sa.and_(evaluations.c.run == newest.c.run, evaluations.c.round == newest.c.round)
    statement = sa.select(*columns).join(newest, newest_round).join(runs, runs.c.run == evaluations.c.run)
    return connection.select(statement.where(scored)).all()
