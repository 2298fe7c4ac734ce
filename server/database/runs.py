"""Runs: made, listed, shown whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from server.database.blobs import add_blobs
from server.database.configs import Configs, no_such_run
from server.database.evaluations import read_chosen, read_headlines
from server.database.events import add_events
from server.database.rounds import newest_model, read_round, scored_model
from server.database.session import Reading, Writing
from server.database.step.load import load
from server.database.tables import clients, deletions, enrolments, runs
from server.lifecycle.state import Run
from server.lifecycle.views import find_late_evaluators, find_obstacle, find_standing, waiting_for
from shared.config import RunConfig
from shared.fingerprints import identity_fingerprint
from shared.problems import NameTaken
from shared.schemas import (
    EnrolmentView,
    HeadlineScore,
    RoundStatus,
    RoundView,
    RunStatus,
    RunSummary,
    RunView,
    TensorSpec,
)

__all__ = ["create_runs", "final_model", "list_runs", "read_run", "read_state", "read_version"]

Row = Any  # of a select with many columns: checked by the views it is made into


def create_runs(
    connection: Writing,
    configs: Sequence[RunConfig],
    *,
    classes: Sequence[str],
    manifest: Sequence[TensorSpec],
    initial_model: str,
    initial_bytes: int,
    actor: str,
    now: dt.datetime,
) -> None:
    """Enrolling runs from one model, whose blob is stored already. Raises :class:`NameTaken`."""
    same = {
        "version": 0,
        "status": RunStatus.ENROLLING,
        "classes": list(classes),
        "manifest": [spec.model_dump(mode="json") for spec in manifest],
        "completed_rounds": 0,
        "initial_model": initial_model,
        "created_at": now,
    }
    for config in configs:
        _check_never_deleted(connection, config.name)
        row = same | {"run": config.name, "config": config.model_dump(mode="json")}
        if connection.insert_new(runs, row, "run") != 1:
            raise NameTaken(f"there is a run named {config.name!r} already", hint="Choose another name.")
    add_blobs(connection, {initial_model: initial_bytes}, now)
    created = [
        {
            "kind": "run_created",
            "run": config.name,
            "detail": {
                "initial_model": initial_model,
                "algorithm": config.algorithm.name,
                "task": config.task,
            },
        }
        for config in configs
    ]
    add_events(connection, created, actor=actor, now=now)


def _check_never_deleted(connection: Reading, run: str) -> None:
    found = sa.select(deletions.c.deleted_at).where(deletions.c.run == run)
    deleted_at = connection.select(found).scalar()
    if deleted_at is not None:
        raise NameTaken(
            f"a run named {run!r} was deleted on {deleted_at:%Y-%m-%d}, and sites may still know it",
            hint="Choose another name: none is given twice.",
        )


def list_runs(connection: Reading, configs: Configs, *, archived: bool = False) -> list[RunSummary]:
    """Newest first; ``archived``: also those that were put away."""
    accuracies = read_headlines(connection, configs)
    columns = [c for c in runs.c if c.name not in ("manifest", "classes")]
    chosen = sa.true() if archived else runs.c.archived_at.is_(None)
    found = connection.select(
        sa.select(*columns).where(chosen).order_by(runs.c.created_at.desc(), runs.c.run)
    )
    rows = list(found)
    headlines = _read_chosen(connection, rows)
    return [RunSummary(**_summary(row, accuracies, headlines)) for row in rows]


def _read_chosen(connection: Reading, rows: Sequence[Row]) -> dict[str, HeadlineScore]:
    """By run: the score that its configuration shows first, where that is another than accuracy."""
    chosen = {row.run: row.config.get("headline") for row in rows}
    names = {run: name for run, name in chosen.items() if name not in (None, "accuracy")}
    rules = {row.run: row.config.get("combine_scores", "median") for row in rows if row.run in names}
    values = read_chosen(connection, names, rules)
    return {run: HeadlineScore(name=names[run], value=value) for run, value in values.items()}


def _summary(
    row: Row, accuracies: Mapping[str, float], headlines: Mapping[str, HeadlineScore]
) -> dict[str, Any]:
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
        "archived_at": row.archived_at,
        "waiting_since": row.waiting_since,
        "waiting_until": row.waiting_until,
        "accuracy": accuracies.get(row.run),
        "headline": headlines.get(row.run),
        "tags": config.get("tags", ()),
    }


_VERSION = sa.select(runs.c.version).where(runs.c.run == sa.bindparam("of_run", type_=sa.String))


def read_version(connection: Reading, run: str) -> int | None:
    """Raised by everything that moves the run; None for no such run."""
    found: int | None = connection.select(_VERSION, {"of_run": run}).scalar()
    return found


def read_state(connection: Reading, run: str, configs: Configs) -> Run:
    """The run as the state machine sees it. Raises :class:`NotFound`."""
    return load(connection, run, configs).run


def read_run(
    connection: Reading, run: str, now: dt.datetime, configs: Configs, reader: str | None = None
) -> RunView:
    """The run whole, with enrolments and the newest attempt of its newest round. Raises :class:`NotFound`.

    ``reader``: the client for whom the sentence on what the run waits for is written; None: for the page.
    """
    row: Row = connection.select(sa.select(runs).where(runs.c.run == run)).one_or_none()
    if row is None:
        raise no_such_run(run)
    state = read_state(connection, run, configs)
    current = read_round(connection, run, state.round.number) if state.round is not None else None
    obstacle = find_obstacle(state) if state.status is RunStatus.WAITING else None
    ended = state.status.is_terminal
    model = final_model(connection, run, configs) if ended else newest_model(connection, run)
    indexes = (found.index for found in state.enrolments if found.index is not None)
    config = configs.of(connection, run, row.revision)
    waits = waiting_for(state, now, reader=reader) + _name_assistant(config, current, state, reader)
    return RunView(
        **_summary(row, read_headlines(connection, configs, run), _read_chosen(connection, [row])),
        config=config,
        revision=row.revision,
        classes=tuple(row.classes),
        manifest=tuple(TensorSpec.model_validate(spec) for spec in row.manifest),
        initial_model=row.initial_model,
        model=model or row.initial_model,
        enrolments=_enrolments(connection, run),
        taken_indexes=tuple(sorted(indexes)),
        current_round=current,
        waiting_for=waits,
        obstacle=None if obstacle is None else obstacle.kind,
        late_evaluators=find_late_evaluators(state) if obstacle and obstacle.kind == "scores" else (),
        rewound_attempts=state.rewound_attempts,
        totals=state.totals,
    )


def _name_assistant(config: RunConfig, current: RoundView | None, state: Run, reader: str | None) -> str:
    """That an aggregation waits for the run's assistant, if it does; for clients without its name."""
    asked = None if current is None or current.status is not RoundStatus.AGGREGATING else current.assistance
    if asked is None or config.assistant is None or asked.answered_at or asked.outcome:
        return ""
    until = f"is asked until {asked.deadline_at:%Y-%m-%d %H:%M} UTC"
    if reader is not None:
        return f"; the run's assistant {until}"
    who = config.assistant.client
    is_here = any(found.client == who for found in state.enrolments)
    return f"; {who}, the run's assistant, {until}{'' if is_here else ', and takes no part in the run yet'}"


def final_model(connection: Reading, run: str, configs: Configs) -> str | None:
    """The model that an ended run is left with: the newest, or with ``keep: best`` the best scored one.

    None: no round was completed.
    """
    if configs.of(connection, run).keep == "best":
        found = find_standing(load(connection, run, configs).run)
        if found is not None:
            return scored_model(connection, run, found.best_round)
    return newest_model(connection, run)


def _enrolments(connection: Reading, run: str) -> tuple[EnrolmentView, ...]:
    """Trainers by index, then those without one by name."""
    statement = (
        sa.select(enrolments, clients.c.last_seen_at)
        .join(clients, clients.c.client == enrolments.c.client)
        .where(enrolments.c.run == run)
        .order_by(enrolments.c.index.is_(None), enrolments.c.index, enrolments.c.client)
    )
    rows = (dict(row._mapping) for row in connection.select(statement))
    return tuple(EnrolmentView(**row, fingerprint=identity_fingerprint(row["identity"])) for row in rows)
