"""A run as the state machine sees it, read from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from server.database.configs import Configs, no_such_run
from server.database.evaluations import make_evaluation
from server.database.session import Reading
from server.database.tables import are_of_one_attempt, enrolments, evaluations, participants, rounds, runs
from server.lifecycle.state import Enrolment, Participant, Policy, Round, Run, Score, Wait
from shared.config import RunConfig
from shared.schemas import EvaluationView, Role, SumTotals
from shared.scores import find_score, name_score
from shared.secure.coordinator import Coordinator, Phase

__all__ = ["Snapshot", "load"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``run`` at ``version``, and what the store itself asks about before it asks the state machine."""

    run: Run
    version: int
    config: RunConfig
    revision: int  # of the config
    initial_model: str
    discrepancies: dict[str, tuple[str, float]]  # by client: metric, value
    troubled: frozenset[str]  # clients with a last error
    updates: dict[str, str]  # of the newest attempt, by client: digest
    start_model: str | None  # of the newest attempt


# Statements are built once: building costs more than running them on SQLite.
_RUN = sa.bindparam("of_run", type_=sa.String)
_HEAD = sa.select(
    runs.c.version,
    runs.c.status,
    runs.c.reason,
    runs.c.completed_rounds,
    runs.c.initial_model,
    runs.c.revision,
    runs.c.highest_attempt,
    runs.c.rewound_rounds,
    runs.c.rewound_attempts,
    runs.c.totals,
    runs.c.waiting_since,
    runs.c.waiting_until,
).where(runs.c.run == _RUN)
# "no key": foreign keys that point at the row are checked by others meanwhile
_LOCKED_HEAD = _HEAD.with_for_update(key_share=True)
_ENROLMENTS = (
    sa.select(
        enrolments.c.client,
        enrolments.c.role,
        enrolments.c.status,
        enrolments.c.examples,
        enrolments.c.index,
        enrolments.c.reason,
        enrolments.c.approved_examples,
        enrolments.c.identity,
        enrolments.c.discrepancy_metric,
        enrolments.c.discrepancy,
        enrolments.c.last_error.is_not(None).label("troubled"),
    )
    .where(enrolments.c.run == _RUN)
    .order_by(enrolments.c.client)
)
# after the run went back: rounds before that, and attempts drawn since
_COUNTS = sa.or_(
    rounds.c.round <= sa.bindparam("completed", type_=sa.BigInteger),
    rounds.c.round > sa.bindparam("rewound_rounds", type_=sa.BigInteger),
    rounds.c.attempt > sa.bindparam("rewound_attempts", type_=sa.BigInteger),
)
_NEWEST = (
    sa.select(rounds)
    .where(rounds.c.run == _RUN, _COUNTS)
    .order_by(rounds.c.round.desc(), rounds.c.attempt.desc())
    .limit(1)
    .subquery("newest")
)
_ROUND = (
    sa.select(
        _NEWEST.c.round,
        _NEWEST.c.attempt,
        _NEWEST.c.status.label("round_status"),
        _NEWEST.c.deadline_at,
        _NEWEST.c.reason.label("round_reason"),
        _NEWEST.c.start_model,
        participants.c.client,
        participants.c.index.label("place"),  # `row.index` is a method of rows
        participants.c.status,
        participants.c.reason,
        participants.c.update,
        participants.c.answered,
    )
    .join_from(_NEWEST, participants, are_of_one_attempt(participants, _NEWEST))
    .order_by(participants.c.index)
)

# on its own: it grows with the square of the clients, and the round's other columns come once a participant
_SECURE = sa.select(rounds.c.secure).where(
    rounds.c.run == _RUN,
    rounds.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
    rounds.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
)


def load(connection: Reading, run: str, configs: Configs, *, lock: bool = False) -> Snapshot:
    """The run now; ``lock`` keeps other coordinators from moving it until the transaction ends."""
    parameters = {"of_run": run}
    head = connection.select(_LOCKED_HEAD if lock else _HEAD, parameters).one_or_none()
    if head is None:
        raise no_such_run(run)
    enrolled = connection.select(_ENROLMENTS, parameters).all()
    counting = {
        "completed": head.completed_rounds,
        "rewound_rounds": head.rewound_rounds,
        "rewound_attempts": head.rewound_attempts,
    }
    newest = connection.select(_ROUND, parameters | counting).all()
    config = configs.of(connection, run, head.revision)
    return Snapshot(
        run=Run(
            id=run,
            status=head.status,
            policy=Policy.of(config),
            enrolments=tuple(_enrolment(row) for row in enrolled),
            completed_rounds=head.completed_rounds,
            round=_round(newest, _read_secure(connection, run, config, newest[0])) if newest else None,
            reason=head.reason,
            highest_attempt=head.highest_attempt,
            rewound_rounds=head.rewound_rounds,
            rewound_attempts=head.rewound_attempts,
            scores=_read_scores(connection, run, config) if config.needs_scores else (),
            totals=None if head.totals is None else SumTotals.model_validate(head.totals),
            wait=None if head.waiting_since is None else Wait(head.waiting_since, head.waiting_until),
        ),
        version=head.version,
        config=config,
        revision=head.revision,
        initial_model=head.initial_model,
        discrepancies={
            row.client: (row.discrepancy_metric, row.discrepancy)
            for row in enrolled
            if row.discrepancy is not None
        },
        troubled=frozenset(row.client for row in enrolled if row.troubled),
        updates={row.client: row.update for row in newest if row.update is not None},
        start_model=newest[0].start_model if newest else None,
    )


_SCORES = (
    sa.select(evaluations)
    .join(
        enrolments,
        sa.and_(enrolments.c.run == evaluations.c.run, enrolments.c.client == evaluations.c.client),
    )
    .where(evaluations.c.run == _RUN, enrolments.c.role == Role.EVALUATOR)
    .order_by(evaluations.c.round, evaluations.c.client)
)


def _read_scores(connection: Reading, run: str, config: RunConfig) -> tuple[Score, ...]:
    """What the evaluators say of each round, by the metric that decides."""
    rows = connection.select(_SCORES, {"of_run": run})
    return tuple(_score(make_evaluation(row), config.deciding_metric) for row in rows)


def _score(evaluation: EvaluationView, name: str | None) -> Score:
    return Score(
        round=evaluation.round,
        client=evaluation.client,
        metric=name_score(evaluation, name),
        value=find_score(evaluation, name),
        examples=evaluation.examples,
    )


def _enrolment(row: sa.Row[*tuple[Any, ...]]) -> Enrolment:
    client, role, status, examples, index, reason, approved, identity = row[:8]
    return Enrolment(
        client=client,
        role=role,
        status=status,
        examples=examples,
        index=index,
        reason=reason,
        approved_examples=approved,
        identity=identity,
    )


def _read_secure(connection: Reading, run: str, config: RunConfig, newest: Any) -> Coordinator | None:
    if config.secure is None:
        return None
    place = {"of_run": run, "of_round": newest.round, "of_attempt": newest.attempt}
    kept = connection.select(_SECURE, place).scalar_one()
    return None if kept is None else Coordinator.model_validate_json(kept)


def _round(rows: Sequence[Any], secure: Coordinator | None) -> Round:
    first = rows[0]
    return Round(
        number=first.round,
        attempt=first.attempt,
        status=first.round_status,
        deadline_at=first.deadline_at,
        participants=tuple(
            Participant(
                client=row.client,
                index=row.place,
                status=row.status,
                reason=row.reason,
                answered=None if row.answered is None else Phase(row.answered),
            )
            for row in rows
        ),
        reason=first.round_reason,
        secure=secure,
    )
