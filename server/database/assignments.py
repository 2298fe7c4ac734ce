"""What a client is asked to do next. Read at every poll, so the common answers come first."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError

from server.database.assistances import find_next
from server.database.clients import read_grants
from server.database.configs import Configs
from server.database.join_tokens import ClientGrant
from server.database.runs import final_model
from server.database.session import Reading
from server.database.step.load import load
from server.database.tables import (
    are_of_one_attempt,
    blobs,
    enrolments,
    evaluations,
    participants,
    rounds,
    runs,
    shadows,
)
from server.lifecycle.state import Run
from server.lifecycle.views import reason_for_clients, waiting_for
from shared.config import Participants
from shared.schemas import (
    Assignment,
    Assist,
    Enrol,
    EnrolmentStatus,
    Evaluate,
    Finished,
    ParticipantStatus,
    Role,
    RoundStatus,
    RunStatus,
    SecureStep,
    SubmitDiscrepancy,
    Train,
)
from shared.secure.coordinator import Phase

__all__ = ["Work", "explain_waiting", "list_away", "next_assignments"]

log = logging.getLogger("feddisco")

NO_RUN = "no run on this coordinator is open to this client"
_OPEN = [status for status in RunStatus if not status.is_terminal]
_CLIENT = sa.bindparam("of_client", type_=sa.String)
_RUN = sa.bindparam("of_run", type_=sa.String)
_aggregated = participants.alias("aggregated")
_completed = rounds.alias("completed")
_LAST_AGGREGATED = (
    sa.select(sa.func.coalesce(sa.func.max(_aggregated.c.round), 0))
    .join(_completed, are_of_one_attempt(_completed, _aggregated))
    .where(
        _completed.c.status == RoundStatus.COMPLETED,  # and not gone back behind since
        _aggregated.c.run == participants.c.run,
        _aggregated.c.client == participants.c.client,
        _aggregated.c.status == ParticipantStatus.AGGREGATED,
    )
    .scalar_subquery()
)
_IS_LOST = (
    sa.select(blobs.c.digest)
    .where(blobs.c.digest == participants.c.update, blobs.c.fault.is_not(None))
    .exists()
)
_STEPS = (None, *Phase)
_IS_ITS_TURN = sa.or_(
    *(
        sa.and_(rounds.c.step == step.value, participants.c.answered.is_not_distinct_from(before))
        for before, step in itertools.pairwise(_STEPS)
        if step is not None
    )
)
"""In a secure round a client is asked to take the step after the one that it answered last."""
_NAMES: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
_TRAIN = (
    sa.select(
        participants.c.client,
        participants.c.run,
        participants.c.round,
        participants.c.attempt,
        participants.c.index,
        participants.c.relative_size,
        sa.func.coalesce(participants.c.start_model, rounds.c.start_model).label("model"),
        rounds.c.start_broadcast.label("broadcast"),
        rounds.c.deadline_at,
        runs.c.revision,
        rounds.c.step,
        _LAST_AGGREGATED.label("last_aggregated_round"),
        _IS_LOST.label("again"),
    )
    .join(rounds, are_of_one_attempt(rounds, participants))
    .join(runs, runs.c.run == participants.c.run)
    .where(
        participants.c.client.in_(_NAMES),
        sa.or_(
            sa.and_(
                participants.c.status.in_([status for status in ParticipantStatus if status.is_awaited]),
                rounds.c.status == RoundStatus.COLLECTING,
                sa.or_(rounds.c.step.is_(None), _IS_ITS_TURN),
            ),
            sa.and_(
                participants.c.status == ParticipantStatus.UPLOADED,
                rounds.c.status == RoundStatus.COLLECTING,
                _IS_ITS_TURN,
            ),
            sa.and_(
                sa.bindparam("lost_too", type_=sa.Boolean),
                participants.c.status == ParticipantStatus.UPLOADED,
                rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
                _IS_LOST,
            ),
        ),
    )
    .order_by(rounds.c.opened_at, participants.c.run)
)
_ENROLMENTS = (
    sa.select(enrolments.c.run)
    .join(runs, runs.c.run == enrolments.c.run)
    .where(
        enrolments.c.client == _CLIENT,
        enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_present]),
    )
    .order_by(runs.c.created_at, runs.c.run)
)
_REFUSALS = (
    sa.select(enrolments.c.run, enrolments.c.reason)
    .join(runs, runs.c.run == enrolments.c.run)
    .where(
        enrolments.c.client == _CLIENT,
        enrolments.c.status == EnrolmentStatus.REFUSED,
        runs.c.status.in_(_OPEN),
    )
    .order_by(runs.c.created_at, runs.c.run)
)
_ANSWERED = (
    sa.select(
        enrolments.c.client,
        enrolments.c.run,
        enrolments.c.role,
        enrolments.c.status,
        runs.c.status.label("run_status"),
        runs.c.reason,
        runs.c.initial_model,
        runs.c.revision,
    )
    .join(runs, runs.c.run == enrolments.c.run)
    .where(
        enrolments.c.client.in_(_NAMES),
        sa.or_(
            enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_present]),
            runs.c.status.in_(_OPEN),
        ),
    )
    .order_by(runs.c.created_at, runs.c.run)
)
"""Runs that the clients are in, and open ones that they have left or that did not admit them."""
_ALL_OPEN = (
    sa.select(runs.c.run, runs.c.revision)
    .where(runs.c.status.in_(_OPEN))
    .order_by(runs.c.created_at, runs.c.run)
)


class Work(NamedTuple):
    """A client's next assignment. ``is_all``: once it has trained as it is asked here, there is no other.

    ``reason``: what it waits for, where that is found by the way (:func:`explain_waiting`).
    """

    assignment: Assignment | None
    is_all: bool = False
    reason: str | None = None


def next_assignments(connection: Reading, asked: Mapping[str, bool], configs: Configs) -> dict[str, Work]:
    """By client its next assignment over all runs, in a few statements for all of them.

    True: also to send again an update whose stored file is missing or damaged.

    In this order: train; submit a discrepancy; assist; evaluate (each run's oldest round first); enrol; hear
    that a run has ended. Within each, the oldest run first; of what takes long, what has waited longest.
    """
    training = _find_training(connection, asked, configs)
    known: dict[str, list[Any]] = {client: [] for client in asked}
    for row in connection.select(_ANSWERED, {"names": list(asked)}):
        known[row.client].append(row)
    answered = {client: {row.run for row in rows} for client, rows in known.items()}
    invited = _invite(connection, answered, configs)
    found = {}
    for client, rows in known.items():
        train, is_only = training.get(client, (None, True))
        if not is_only:
            found[client] = Work(train)
            continue
        present = [row for row in rows if row.status.is_present]
        other = (
            _discrepancy(connection, present, configs)
            or _assistance(connection, client, present, configs)
            or _evaluation(connection, client, present, configs)
            or invited.get(client)
            or _finished(connection, present, configs)
        )
        found[client] = Work(train or other, is_all=other is None, reason=None if rows else NO_RUN)
    return found


def _find_training(
    connection: Reading, asked: Mapping[str, bool], configs: Configs
) -> dict[str, tuple[Train | SecureStep, bool]]:
    """By client, and whether no other training or step of a sum follows it before the round's end."""
    found: dict[str, tuple[Train | SecureStep, bool]] = {}
    loaded: dict[str, Run] = {}  # with secure rounds, which are long to read
    for lost_too in set(asked.values()):
        names = [client for client, wanted in asked.items() if wanted is lost_too]
        for row in connection.select(_TRAIN, {"names": names, "lost_too": lost_too}).all():
            if row.client in found:
                found[row.client] = found[row.client][0], False
                continue
            told = {name: value for name, value in row._mapping.items() if name != "client"}
            if row.step is None:
                found[row.client] = Train(**told), not row.again
            else:
                found[row.client] = _secure(connection, row, told, configs, loaded), False
    return found


def _invite(
    connection: Reading, answered: Mapping[str, Container[str]], configs: Configs
) -> dict[str, Enrol]:
    """To the oldest open run that admits each of the clients and that it has not answered."""
    opened = connection.select(_ALL_OPEN).all()
    asked = [client for client, runs in answered.items() if any(row.run not in runs for row in opened)]
    grants = read_grants(connection, asked) if asked else {}  # of those that were not revoked
    found = {}
    for client, grant in grants.items():
        for run, revision in opened:
            if run in answered[client]:
                continue
            try:
                config = configs.of(connection, run, revision)
            except ValidationError:  # other runs go on; who opens this one is told the fault
                log.error("the configuration of run %s cannot be read, nobody is invited to it", run)
                continue
            if _admits(config.participants, client, grant):
                found[client] = Enrol(run=run)
                break
    return found


def _admits(participants: Participants, client: str, grant: ClientGrant) -> bool:
    roles = Role if grant.role is None else [Role(grant.role)]
    return any(participants.admits(role, client, grant.group) for role in roles)


def _secure(
    connection: Reading, row: Any, told: Mapping[str, Any], configs: Configs, loaded: dict[str, Run]
) -> Train | SecureStep:
    """The step of a secure round that is the client's turn, with what the others sent for it."""
    if row.run not in loaded:
        loaded[row.run] = load(connection, row.run, configs).run
    run = loaded[row.run]
    secure = None if run.round is None else run.round.secure
    if secure is None:
        raise RuntimeError(f"run {row.run!r} is at a step of a secure sum without one")
    index = row._mapping["index"]  # `row.index` is a method of rows
    if row.round and (row.again or secure.phase is Phase.UPLOAD):
        return Train(**told, inbox=secure.inbox_of(index), totals=run.totals)
    sent: dict[str, Any] = {}
    match Phase.UPLOAD if row.again else secure.phase:
        case Phase.ADVERTISE:
            sent["identities"] = {known: key.hex() for known, key in secure.identities.items()}
            sent["score_sum"] = _read_score_sum(connection, row.run, row.last_aggregated_round)
        case Phase.SHARE:
            sent["roster"] = secure.roster
        case Phase.UPLOAD:
            sent["inbox"] = secure.inbox_of(index)
        case Phase.AGREE:
            sent["survivors"] = secure.survivors
        case Phase.UNMASK:
            sent["agreements"] = secure.signed
    return SecureStep(**told, totals=run.totals, **sent)


def _read_score_sum(connection: Reading, run: str, number: int) -> float | None:
    chosen = (rounds.c.run == run, rounds.c.round == number, rounds.c.status == RoundStatus.COMPLETED)
    sums = connection.select(sa.select(rounds.c.sums).where(*chosen)).scalar()
    return None if sums is None else sums.get("score")


def _discrepancy(connection: Reading, enrolled: Any, configs: Configs) -> SubmitDiscrepancy | None:
    for row in enrolled:
        if row.status is EnrolmentStatus.AWAITING_DISCREPANCY and not row.run_status.is_terminal:
            asked = configs.of(connection, row.run, row.revision).weighting.discrepancy
            if asked is not None:
                return SubmitDiscrepancy(run=row.run, metric=asked.metric, target=asked.resolve(None))
    return None


def _assistance(connection: Reading, client: str, enrolled: Any, configs: Configs) -> Assist | None:
    assisted = []
    for row in enrolled:
        if row.role is Role.EVALUATOR and row.status is EnrolmentStatus.READY:
            assistant = configs.of(connection, row.run, row.revision).assistant
            if assistant is not None and assistant.client == client:
                assisted.append(row.run)
    return find_next(connection, assisted) if assisted else None


def _evaluation(connection: Reading, client: str, enrolled: Any, configs: Configs) -> Evaluate | None:
    """Each run has its turn: of the models that wait, one for each run, that which has waited longest."""
    waiting = []
    for row in enrolled:
        wanted = row.run_status is RunStatus.COMPLETED or not row.run_status.is_terminal
        if row.role is Role.EVALUATOR and row.status is EnrolmentStatus.READY and wanted:
            config = configs.of(connection, row.run, row.revision)
            if config.evaluate_every == 0:
                continue
            if not _has_scored(connection, row.run, client, 0):
                return Evaluate(run=row.run, round=0, model=row.initial_model, revision=row.revision)
            parameters = {
                "of_run": row.run,
                "of_client": client,
                "every": config.evaluate_every,
                "last": config.rounds,
            }
            pending = connection.select(_UNSCORED, parameters).one_or_none()
            if pending is not None:
                waiting.append((row, pending))
    if not waiting:
        return None
    row, pending = min(waiting, key=lambda each: (each[1].completed_at, each[0].run))
    has_shadows = bool(configs.of(connection, row.run, row.revision).shadow)
    return Evaluate(
        run=row.run,
        round=pending.round,
        model=pending.scored_model,
        revision=row.revision,
        shadows=_read_shadows(connection, row.run, pending) if has_shadows else {},
    )


_SHADOWS = (
    sa.select(shadows.c.name, shadows.c.model)
    .join(blobs, blobs.c.digest == shadows.c.model)  # not collected before this evaluator came
    .where(
        blobs.c.fault.is_(None),
        shadows.c.run == _RUN,
        shadows.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
        shadows.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
    )
    .order_by(shadows.c.name)
)


def _read_shadows(connection: Reading, run: str, of: Any) -> dict[str, str]:
    parameters = {"of_run": run, "of_round": of.round, "of_attempt": of.attempt}
    return {row.name: row.model for row in connection.select(_SHADOWS, parameters)}


_SCORED = sa.select(evaluations.c.round).where(
    evaluations.c.run == _RUN,
    evaluations.c.client == _CLIENT,
    evaluations.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
)
_UNSCORED = (
    sa.select(rounds.c.round, rounds.c.attempt, rounds.c.scored_model, rounds.c.completed_at)
    .where(
        rounds.c.run == _RUN,
        rounds.c.status == RoundStatus.COMPLETED,
        rounds.c.round > 0,
        sa.or_(
            rounds.c.round % sa.bindparam("every", type_=sa.BigInteger) == 0,
            rounds.c.round == sa.bindparam("last", type_=sa.BigInteger),
        ),
        ~sa.select(evaluations.c.round)
        .where(
            evaluations.c.run == rounds.c.run,
            evaluations.c.round == rounds.c.round,
            evaluations.c.client == _CLIENT,
        )
        .exists(),
    )
    .order_by(rounds.c.round)
    .limit(1)
)


def _has_scored(connection: Reading, run: str, client: str, number: int) -> bool:
    parameters = {"of_run": run, "of_client": client, "of_round": number}
    return connection.select(_SCORED, parameters).scalar() is not None


def _finished(connection: Reading, enrolled: Any, configs: Configs) -> Finished | None:
    for row in enrolled:
        if row.run_status.is_terminal:
            model = final_model(connection, row.run, configs) or row.initial_model
            reason = reason_for_clients(row.reason)
            return Finished(run=row.run, status=row.run_status, reason=reason, model=model)
    return None


def explain_waiting(connection: Reading, client: str, now: dt.datetime, configs: Configs) -> str:
    """What a client without an assignment waits for: a sentence a run, beginning with the run's name."""
    enrolled = connection.select(_ENROLMENTS, {"of_client": client}).all()
    sentences = [
        f"{row.run}: {waiting_for(load(connection, row.run, configs).run, now, reader=client)}"
        for row in enrolled
    ]
    refused = connection.select(_REFUSALS, {"of_client": client})
    sentences += [f"{row.run}: not admitted, {row.reason}" for row in refused]
    return "; ".join(sentences) or NO_RUN


def list_away(connection: Reading, client: str) -> list[str]:
    """Open runs in which the client counts as away: that it asks for work again is news there."""
    statement = (
        sa.select(enrolments.c.run)
        .join(runs, runs.c.run == enrolments.c.run)
        .where(
            enrolments.c.client == client,
            enrolments.c.status == EnrolmentStatus.AWAY,
            runs.c.status.in_(_OPEN),
        )
        .order_by(enrolments.c.run)
    )
    return list(connection.select(statement).scalars())
