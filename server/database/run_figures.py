"""Figures of each run that has not ended, for the metrics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from server.database.blobs import sum_bytes
from server.database.evaluations import counts_for_headline
from server.database.session import Reading
from server.database.tables import clients, enrolments, evaluations, rounds, runs
from shared.schemas import EnrolmentStatus, RoundStatus, RunStatus
from shared.scores import summarise

__all__ = ["RunFigures", "list_run_figures"]


class RunFigures(NamedTuple):
    """``open_seconds``: since the open round was opened; ``silent_seconds``: since a client was heard last.

    ``accuracy`` and ``loss`` are the median of the evaluators' newest scores.
    """

    run: str
    round: int
    rounds: int
    accuracy: float | None
    loss: float | None
    open_seconds: float | None
    silent_seconds: float | None
    bytes: int


_LIVE = [status for status in RunStatus if not status.is_terminal]
_PRESENT = [status for status in EnrolmentStatus if status.is_present]
_OPEN = [status for status in RoundStatus if status.is_open]


def list_run_figures(connection: Reading, now: dt.datetime) -> list[RunFigures]:
    """By name; a few queries however many runs there are."""
    live = sa.select(runs.c.run).where(runs.c.status.in_(_LIVE))
    planned = runs.c.config["rounds"].as_integer()
    found = connection.select(
        sa.select(runs.c.run, runs.c.completed_rounds, planned)
        .where(runs.c.status.in_(_LIVE))
        .order_by(runs.c.run)
    ).all()
    if not found:
        return []
    opened = _read_times(
        connection,
        sa.select(rounds.c.run, sa.func.max(rounds.c.opened_at).label("at"))
        .where(rounds.c.status.in_(_OPEN), rounds.c.run.in_(live))
        .group_by(rounds.c.run),
    )
    heard = _read_times(
        connection,
        sa.select(enrolments.c.run, sa.func.max(clients.c.last_seen_at).label("at"))
        .join(clients, clients.c.client == enrolments.c.client)
        .where(enrolments.c.status.in_(_PRESENT), enrolments.c.run.in_(live))
        .group_by(enrolments.c.run),
    )
    accuracy, loss = _newest_scores(connection, live)
    stored, _ = sum_bytes(connection)
    return [
        RunFigures(
            run=run,
            round=completed,
            rounds=of,
            accuracy=accuracy.get(run),
            loss=loss.get(run),
            open_seconds=_since(opened.get(run), now),
            silent_seconds=_since(heard.get(run), now),
            bytes=stored.get(run, 0),
        )
        for run, completed, of in found
    ]


def _read_times(
    connection: Reading, statement: sa.Select[tuple[str, dt.datetime | None]]
) -> dict[str, dt.datetime | None]:
    return {row.run: row.at for row in connection.select(statement)}


def _newest_scores(
    connection: Reading, live: sa.Select[tuple[str]]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    newest = (
        sa.select(evaluations.c.run, sa.func.max(evaluations.c.round).label("round"))
        .where(counts_for_headline(), evaluations.c.run.in_(live))
        .group_by(evaluations.c.run)
        .subquery()
    )
    scored = (
        sa.select(evaluations.c.run, evaluations.c.accuracy, evaluations.c.loss, evaluations.c.examples)
        .join(newest, sa.and_(evaluations.c.run == newest.c.run, evaluations.c.round == newest.c.round))
        .where(counts_for_headline())
    )
    accuracy: dict[str, list[tuple[float, int]]] = {}
    loss: dict[str, list[tuple[float, int]]] = {}
    for run, share, mean, examples in connection.select(scored):
        if share is not None:
            accuracy.setdefault(run, []).append((share, examples))
        if mean is not None:
            loss.setdefault(run, []).append((mean, examples))
    return (
        {run: summarise(values, "median") for run, values in accuracy.items()},
        {run: summarise(values, "median") for run, values in loss.items()},
    )


def _since(at: dt.datetime | None, now: dt.datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())
