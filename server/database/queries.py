"""What the pages and the API show: rows made into the views of ``shared.schemas``. Reads only."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from server.database import snapshots
from server.database.session import Reading
from server.database.snapshots import Configs, no_such_run
from server.database.tables import clients, enrolments, evaluations, participants, rounds, runs
from server.lifecycle.machine import waiting_for
from server.lifecycle.state import Run
from shared.problems import NotFound
from shared.schemas import (
    EnrolmentView,
    EvaluationView,
    LedgerRow,
    Progress,
    Receipt,
    RoundStatus,
    RoundView,
    RunSummary,
    RunView,
    TensorSpec,
)

__all__ = ["all_evaluations", "all_rounds", "all_runs", "one_round", "receipt", "run_state", "run_view"]

Row = Any  # of a select with many columns: checked by the views it is made into


def run_state(connection: Reading, run: str, configs: Configs) -> Run:
    return snapshots.load(connection, run, configs).run


# -------------------------------------------------------------------- runs


def all_runs(connection: Reading) -> list[RunSummary]:
    """Newest first."""
    accuracies = _accuracies(connection)
    columns = [c for c in runs.c if c.name not in ("manifest", "classes")]
    found = connection.select(sa.select(*columns).order_by(runs.c.created_at.desc(), runs.c.run))
    return [RunSummary(**_summary(row, accuracies)) for row in found]


def _summary(row: Row, accuracies: Mapping[str, float]) -> dict[str, Any]:
    config = row.config
    return {
        "run": row.run,
        "status": row.status,
        "reason": row.reason,
        "task": config["task"],
        "algorithm": config["algorithm"]["name"],
        "weighting": config["weighting"]["kind"],
        "rounds": config["rounds"],
        "completed_rounds": row.completed_rounds,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
        "accuracy": accuracies.get(row.run),
    }


def _accuracies(connection: Reading, run: str | None = None) -> dict[str, float]:
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


def run_view(connection: Reading, run: str, now: dt.datetime, configs: Configs) -> RunView:
    row: Row = connection.select(sa.select(runs).where(runs.c.run == run)).one_or_none()
    if row is None:
        raise no_such_run(run)
    state = run_state(connection, run, configs)
    current = one_round(connection, run, state.round.number) if state.round is not None else None
    return RunView(
        **_summary(row, _accuracies(connection, run)),
        config=configs.of(connection, run),
        classes=tuple(row.classes),
        manifest=tuple(TensorSpec.model_validate(spec) for spec in row.manifest),
        initial_model=row.initial_model,
        model=newest_model(connection, run) or row.initial_model,
        enrolments=_enrolments(connection, run),
        current_round=current,
        waiting_for=waiting_for(state, now),
    )


_NEWEST_MODEL = (
    sa.select(rounds.c.model)
    .where(rounds.c.run == sa.bindparam("of_run", type_=sa.String), rounds.c.status == RoundStatus.COMPLETED)
    .order_by(rounds.c.round.desc())
    .limit(1)
)


def newest_model(connection: Reading, run: str) -> str | None:
    found: str | None = connection.select(_NEWEST_MODEL, {"of_run": run}).scalar()
    return found


def _enrolments(connection: Reading, run: str) -> tuple[EnrolmentView, ...]:
    """Trainers by index, then those without one by name."""
    statement = (
        sa.select(enrolments, clients.c.last_seen_at)
        .join(clients, clients.c.client == enrolments.c.client)
        .where(enrolments.c.run == run)
        .order_by(enrolments.c.index.is_(None), enrolments.c.index, enrolments.c.client)
    )
    return tuple(EnrolmentView(**row._mapping) for row in connection.select(statement))


# -------------------------------------------------------------------- rounds


def all_rounds(connection: Reading, run: str, since: int) -> list[RoundView]:
    """Oldest first, every attempt, from round ``since`` on; three queries however many there are."""
    found: list[Row] = list(
        connection.select(
            sa.select(rounds)
            .where(rounds.c.run == run, rounds.c.round >= since)
            .order_by(rounds.c.round, rounds.c.attempt)
        )
    )
    if not found:
        _require_run(connection, run)
    ledgers: dict[tuple[int, int], list[LedgerRow]] = defaultdict(list)
    chosen = (participants.c.run == run, participants.c.round >= since)
    for row in _participants(connection, *chosen):
        ledgers[row.round, row.attempt].append(_ledger_row(row))
    scores: dict[int, list[EvaluationView]] = defaultdict(list)
    for evaluation in all_evaluations(connection, run, since=since):
        scores[evaluation.round].append(evaluation)
    return [_round_view(row, ledgers[row.round, row.attempt], scores[row.round]) for row in found]


def one_round(connection: Reading, run: str, number: int, attempt: int | None = None) -> RoundView:
    """The newest attempt unless one is named. Raises :class:`NotFound`."""
    chosen = sa.and_(rounds.c.run == run, rounds.c.round == number)
    if attempt is not None:
        chosen &= rounds.c.attempt == attempt
    statement = sa.select(rounds).where(chosen).order_by(rounds.c.attempt.desc()).limit(1)
    row: Row = connection.select(statement).one_or_none()
    if row is None:
        raise _no_such_round(connection, run, number, attempt)
    key = (participants.c.run == run, participants.c.round == number, participants.c.attempt == row.attempt)
    ledger = [_ledger_row(found) for found in _participants(connection, *key)]
    return _round_view(row, ledger, all_evaluations(connection, run, number))


def _no_such_round(connection: Reading, run: str, number: int, attempt: int | None) -> NotFound:
    _require_run(connection, run)
    which = f"round {number}" if attempt is None else f"attempt {attempt} of round {number}"
    return NotFound(f"run {run!r} has no {which}", hint=f"GET /api/v1/runs/{run}/rounds lists them.")


def _require_run(connection: Reading, run: str) -> None:
    if connection.select(sa.select(runs.c.run).where(runs.c.run == run)).scalar() is None:
        raise no_such_run(run)


def _participants(connection: Reading, *chosen: sa.ColumnElement[bool]) -> Iterable[Row]:
    return connection.select(sa.select(participants).where(*chosen).order_by(participants.c.index))


def _round_view(row: Row, ledger: Iterable[LedgerRow], scores: Iterable[EvaluationView]) -> RoundView:
    # a model is evaluated, and only a completed attempt made one
    evaluated = tuple(scores) if row.status is RoundStatus.COMPLETED else ()
    return RoundView(**row._mapping, ledger=tuple(ledger), evaluations=evaluated)


def _ledger_row(row: Row) -> LedgerRow:
    values = dict(row._mapping)
    values["included"] = bool(row.included)
    values["progress"] = Progress.model_validate(row.progress) if row.progress is not None else None
    return LedgerRow(**values)


def all_evaluations(
    connection: Reading, run: str, number: int | None = None, *, since: int = 0
) -> list[EvaluationView]:
    """By round, then by client; round 0 is the initial model."""
    chosen: sa.ColumnElement[bool] = evaluations.c.run == run
    chosen &= evaluations.c.round == number if number is not None else evaluations.c.round >= since
    statement = sa.select(evaluations).where(chosen).order_by(evaluations.c.round, evaluations.c.client)
    return [EvaluationView(**row._mapping) for row in connection.select(statement)]


def receipt(connection: Reading, run: str, number: int, client: str) -> Receipt:
    """Of the client's newest update to the round; with its row of the ledger once there is one."""
    statement = (
        sa.select(participants, rounds.c.status.label("round_status"))
        .join(
            rounds,
            sa.and_(
                rounds.c.run == participants.c.run,
                rounds.c.round == participants.c.round,
                rounds.c.attempt == participants.c.attempt,
            ),
        )
        .where(
            participants.c.run == run,
            participants.c.round == number,
            participants.c.client == client,
            participants.c.update.is_not(None),
        )
        .order_by(participants.c.attempt.desc())
        .limit(1)
    )
    row: Row = connection.select(statement).one_or_none()
    if row is None:
        raise NotFound(f"{client!r} has no update in round {number} of run {run!r}")
    decided = row.round_status in (RoundStatus.COMPLETED, RoundStatus.ABANDONED)
    return Receipt(
        run=run,
        round=number,
        attempt=row.attempt,
        client=client,
        digest=row.update,
        bytes=row.bytes,
        received_at=row.uploaded_at,
        row=_ledger_row(row) if decided else None,
    )
