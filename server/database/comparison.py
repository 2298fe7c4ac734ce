"""What a comparison of many runs reads: scores by round in one statement, mean weights in another."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from server.database.evaluations import counts_for_headline
from server.database.session import Reading
from server.database.tables import evaluations, participants, runs
from shared.schemas import ComparedRun, RoundScore, RunStatus

CategoryScores = tuple[int, dict[str, float]]

__all__ = ["mean_weights", "newest_categories", "read_compared"]


def read_compared(connection: Reading, names: Sequence[str]) -> list[ComparedRun]:
    """Runs with their configuration and the scores of each evaluator, in the order of ``names``.

    Two statements however many the runs are; a name that no run has is left out.
    """
    wanted = sa.select(runs.c.run, runs.c.status, runs.c.config, runs.c.completed_rounds)
    found = {row.run: row for row in connection.select(wanted.where(runs.c.run.in_(names)))}
    scores: dict[str, list[RoundScore]] = {name: [] for name in found}
    columns = (evaluations.c.run, evaluations.c.round, evaluations.c.examples)
    numbers = (evaluations.c.accuracy, evaluations.c.loss, evaluations.c.extra)
    counted = sa.and_(evaluations.c.run.in_(names), counts_for_headline())
    scored = sa.select(*columns, *numbers).where(counted).order_by(evaluations.c.round)
    for run, *score in connection.select(scored):
        scores[run].append(RoundScore(*score))
    return [
        ComparedRun(
            name,
            RunStatus(found[name].status),
            found[name].config,
            found[name].completed_rounds,
            tuple(scores[name]),
        )
        for name in names
        if name in found
    ]


def mean_weights(connection: Reading, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """By run and client: its mean aggregation weight over the rounds that took its update."""
    statement = (
        sa.select(participants.c.run, participants.c.client, sa.func.avg(participants.c.weight))
        .where(participants.c.run.in_(names), participants.c.included, participants.c.weight.is_not(None))
        .group_by(participants.c.run, participants.c.client)
        .order_by(participants.c.run, participants.c.client)
    )
    weights: dict[str, dict[str, float]] = {}
    for run, client, weight in connection.select(statement):
        weights.setdefault(run, {})[client] = float(weight)
    return weights


def newest_categories(connection: Reading, names: Sequence[str]) -> dict[str, list[CategoryScores]]:
    """By run: of each evaluator of its newest evaluated round, examples and accuracy by category."""
    newest = (
        sa.select(evaluations.c.run, sa.func.max(evaluations.c.round).label("round"))
        .where(evaluations.c.run.in_(names), counts_for_headline())
        .group_by(evaluations.c.run)
        .subquery()
    )
    statement = (
        sa.select(evaluations.c.run, evaluations.c.examples, evaluations.c.per_category)
        .join(newest, sa.and_(evaluations.c.run == newest.c.run, evaluations.c.round == newest.c.round))
        .where(counts_for_headline())
    )
    found: dict[str, list[CategoryScores]] = {}
    for run, examples, per_category in connection.select(statement.order_by(evaluations.c.client)):
        found.setdefault(run, []).append((examples, per_category))
    return found
