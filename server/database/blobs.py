"""Blobs as the database knows them: which there are, which are needed, who may read them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import (
    are_of_one_attempt,
    assistances,
    blobs,
    clients,
    enrolments,
    evaluations,
    participants,
    rounds,
    runs,
    shadows,
    travelling,
)
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus

__all__ = [
    "WantedUpdate",
    "add_blobs",
    "claim_unchecked",
    "find_client_of_update",
    "forget",
    "is_model_of",
    "is_readable",
    "is_recorded",
    "list_faulty",
    "list_referenced",
    "list_unneeded",
    "note_fault",
    "sum_bytes",
]


@dataclass(frozen=True, slots=True)
class WantedUpdate:
    """An accepted update that an open round waits to aggregate."""

    run: str
    round: int
    attempt: int
    client: str


def add_blobs(connection: Writing, sizes: Mapping[str, int], now: dt.datetime) -> None:
    """Notes blobs, bytes by digest. Their files are stored already; the same content may be known."""
    rows = [{"digest": digest, "bytes": size, "created_at": now} for digest, size in sorted(sizes.items())]
    if rows:
        connection.insert_new(blobs, rows)


_KEEP = runs.c.config["keep_updates"].as_integer()
_KEPT_UPDATES = (
    sa.select(participants.c.update)
    .distinct()
    .select_from(
        participants.join(rounds)
        .join(runs, runs.c.run == rounds.c.run)
        .join(clients, clients.c.client == participants.c.client)
    )
    .where(
        participants.c.update.is_not(None),
        sa.or_(
            sa.and_(
                sa.or_(
                    _KEEP.is_(None),
                    # attempts that were abandoned go with theirs
                    rounds.c.round > runs.c.completed_rounds - _KEEP,
                ),
                clients.c.erased_at.is_(None),
                # without a row it was collected, when the run kept fewer
                sa.select(blobs.c.digest).where(blobs.c.digest == participants.c.update).exists(),
            ),
            rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
        ),
    )
)


_has_scored = (
    sa.select(evaluations.c.client)
    .where(
        evaluations.c.run == shadows.c.run,
        evaluations.c.round == shadows.c.round,
        evaluations.c.client == enrolments.c.client,
    )
    .exists()
)
_UNSCORED_SHADOWS = (
    sa.select(shadows.c.model)
    .distinct()
    .join(rounds, are_of_one_attempt(rounds, shadows))
    .join(enrolments, enrolments.c.run == shadows.c.run)
    .where(
        shadows.c.model.is_not(None),
        rounds.c.status == RoundStatus.COMPLETED,  # and not gone back behind since
        enrolments.c.role == Role.EVALUATOR,
        enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_present]),
        ~_has_scored,
        # without a row it was collected, when an evaluator of now was not there
        sa.select(blobs.c.digest).where(blobs.c.digest == shadows.c.model).exists(),
    )
)


_ended = [status for status in RunStatus if status.is_terminal]
_KEPT_TRAVELLING = (
    sa.select(travelling.c.model)
    .distinct()
    .select_from(
        travelling.join(rounds)
        .join(runs, runs.c.run == rounds.c.run)
        .join(
            enrolments,
            sa.and_(enrolments.c.run == travelling.c.run, enrolments.c.index == travelling.c.client),
        )
        .join(clients, clients.c.client == enrolments.c.client)
    )
    .where(
        rounds.c.status == RoundStatus.COMPLETED,
        sa.or_(
            # what the next round starts from
            sa.and_(rounds.c.round == runs.c.completed_rounds, runs.c.status.not_in(_ended)),
            # what a replay of the next round does
            sa.and_(
                sa.or_(_KEEP.is_(None), rounds.c.round + 1 > runs.c.completed_rounds - _KEEP),
                clients.c.erased_at.is_(None),
                sa.select(blobs.c.digest).where(blobs.c.digest == travelling.c.model).exists(),
            ),
        ),
    )
)
_ASSISTED = sa.union(
    *(
        sa.select(column)
        .join(rounds, are_of_one_attempt(rounds, assistances))
        .where(column.is_not(None), rounds.c.status.in_([*statuses]))
        for column, statuses in (
            (assistances.c.model, [status for status in RoundStatus if status.is_open]),
            (
                assistances.c.answer,
                [s for s in RoundStatus if s.is_open or s is RoundStatus.COMPLETED],
            ),
        )
    )
)
"""What an assistant distils, while it does, and all answers of which a round was made: for its replay."""


def list_referenced(connection: Reading) -> set[str]:
    """Every blob that a row names, except updates and travelling models older than their run's
    ``keep_updates`` and the models of shadows that all evaluators have scored.

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
    referenced = set(connection.select(_KEPT_UPDATES).scalars())
    referenced |= set(connection.select(_KEPT_TRAVELLING).scalars())
    referenced |= set(connection.select(_UNSCORED_SHADOWS).scalars())
    referenced |= set(connection.select(sa.select(_ASSISTED.subquery())).scalars())
    for column in columns:
        found = connection.select(sa.select(column).distinct().where(column.is_not(None)))
        referenced.update(found.scalars())
    return referenced


def sum_bytes(connection: Reading) -> tuple[dict[str, int], int]:
    """Bytes of the files that rows name, by run and in all; one that two runs name counts in both."""
    named = sa.union(
        sa.select(runs.c.run, runs.c.initial_model.label("digest")),
        *(
            sa.select(rounds.c.run, column.label("digest")).where(column.is_not(None))
            for column in (rounds.c.model, rounds.c.scored_model, rounds.c.broadcast, rounds.c.private)
        ),
        sa.select(participants.c.run, participants.c.update.label("digest")).where(
            participants.c.update.in_(_KEPT_UPDATES)
        ),
        sa.select(travelling.c.run, travelling.c.model.label("digest")).where(
            travelling.c.model.in_(_KEPT_TRAVELLING)
        ),
        sa.select(shadows.c.run, shadows.c.model.label("digest")).where(
            shadows.c.model.in_(_UNSCORED_SHADOWS)
        ),
        sa.select(assistances.c.run, assistances.c.answer.label("digest")).where(
            assistances.c.answer.is_not(None)
        ),
    ).subquery("named")
    size = sa.func.coalesce(sa.func.sum(blobs.c.bytes), 0)
    joined = named.join(blobs, blobs.c.digest == named.c.digest)
    by_run = connection.select(sa.select(named.c.run, size).select_from(joined).group_by(named.c.run))
    distinct = sa.select(named.c.digest).distinct()
    total = connection.select(sa.select(size).where(blobs.c.digest.in_(distinct))).scalar_one()
    return {run: int(number) for run, number in by_run}, int(total)


def list_unneeded(connection: Reading) -> list[str]:
    """Files that a run named and that no run needs any more."""
    recorded = connection.select(sa.select(blobs.c.digest)).scalars()
    return sorted(set(recorded) - list_referenced(connection))


def forget(connection: Writing, digests: Sequence[str]) -> None:
    """Their files have been deleted."""
    connection.execute(blobs.delete().where(blobs.c.digest.in_(digests)))


# what a round starts from is an initial model or an earlier round's result
_READABLE = sa.union_all(
    *(
        sa.select(enrolments.c.client)
        .join(table, table.c.run == enrolments.c.run)
        .where(
            table.c[column] == sa.bindparam("of_digest", type_=sa.String),
            enrolments.c.client == sa.bindparam("of_client", type_=sa.String),
            enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_admitted]),
        )
        for table, column in (
            (rounds, "model"),
            (rounds, "broadcast"),
            (rounds, "scored_model"),
            (runs, "initial_model"),
            (shadows, "model"),
        )
    ),
    # one travelling model to the one client that goes on from it, while its round is open
    sa.select(participants.c.client)
    .join(rounds, are_of_one_attempt(rounds, participants))
    .join(
        enrolments,
        sa.and_(enrolments.c.run == participants.c.run, enrolments.c.client == participants.c.client),
    )
    .where(
        participants.c.start_model == sa.bindparam("of_digest", type_=sa.String),
        participants.c.client == sa.bindparam("of_client", type_=sa.String),
        # also of an update that is asked for again, since its file was lost here
        participants.c.status.in_(
            [status for status in ParticipantStatus if status.is_awaited or status.has_uploaded]
        ),
        rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
        enrolments.c.status.in_([status for status in EnrolmentStatus if status.is_admitted]),
    ),
).subquery("readable")


def is_readable(connection: Reading, client: str, digest: str) -> bool:
    """Whether a client may download it: models and broadcasts of runs to which it is admitted.

    Never an update, which is another client's, nor the coordinator's private state; but for the one
    travelling model that it is to go on from.
    """
    parameters = {"of_client": client, "of_digest": digest}
    return connection.select(sa.select(_READABLE).limit(1), parameters).first() is not None


def is_model_of(connection: Reading, names: Collection[str], digest: str) -> bool:
    """Whether it is a model of one of these runs: the initial one, or one that a round made."""
    found = (
        sa.select(table.c.run).where(table.c.run.in_(names), column == digest).limit(1)
        for table, column in (
            (runs, runs.c.initial_model),
            (rounds, rounds.c.model),
            (rounds, rounds.c.scored_model),
            (shadows, shadows.c.model),
        )
    )
    return any(connection.select(statement).first() is not None for statement in found)


def find_client_of_update(connection: Reading, digest: str) -> tuple[str, str] | None:
    """Run and client whose update this is; None if it is none."""
    found = sa.select(participants.c.run, participants.c.client).where(participants.c.update == digest)
    row = connection.select(found.limit(1)).first()
    return None if row is None else (row.run, row.client)


# -------------------------------------------------------------------- faults

_IS_WANTED = (
    participants.c.update == sa.bindparam("of_digest", type_=sa.String),
    participants.c.status == ParticipantStatus.UPLOADED,
    rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
)
_WANTED = (
    sa.select(participants.c.run, participants.c.round, participants.c.attempt, participants.c.client)
    .select_from(participants.join(rounds))
    .where(*_IS_WANTED)
    .order_by(participants.c.run, participants.c.client)
)
_WANTED_BYTES = sa.select(participants.c.bytes).select_from(participants.join(rounds)).where(*_IS_WANTED)


def is_recorded(connection: Reading, digest: str) -> bool:
    """Whether a file of this digest was ever stored for a run, and not collected since."""
    return connection.select(sa.select(blobs.c.digest).where(blobs.c.digest == digest)).first() is not None


def list_faulty(connection: Reading) -> list[str]:
    """Digests of the files that are missing or damaged, as far as that is known."""
    return list(connection.select(sa.select(blobs.c.digest).where(blobs.c.fault.is_not(None))).scalars())


def claim_unchecked(connection: Writing, before: dt.datetime, now: dt.datetime) -> str | None:
    """The file that was not checked for longest, and not since ``before``; from now on it counts as checked.

    So each of several coordinators takes another one.
    """
    due = sa.or_(blobs.c.checked_at.is_(None), blobs.c.checked_at < before)
    statement = (
        sa.select(blobs.c.digest)
        .where(due)
        .order_by(blobs.c.checked_at.nulls_first(), blobs.c.digest)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    digest: str | None = connection.select(statement).scalar()
    if digest is not None:
        connection.execute(blobs.update().where(blobs.c.digest == digest).values(checked_at=now))
    return digest


def note_fault(connection: Writing, digest: str, fault: str | None, now: dt.datetime) -> list[WantedUpdate]:
    """What is wrong with a file, None: it is intact. If that is news: the updates of open rounds that it is.

    Each of them gets an event.
    """
    if fault is not None and not is_recorded(connection, digest):
        # collected for earlier runs in the moment in which the same bytes came for this one
        size = connection.select(_WANTED_BYTES.limit(1), {"of_digest": digest}).scalar()
        add_blobs(connection, {} if size is None else {digest: size}, now)
    changed = blobs.c.fault.is_not(None) if fault is None else blobs.c.fault.is_(None)
    noted = blobs.update().where(blobs.c.digest == digest, changed).values(fault=fault)
    if connection.execute(noted).rowcount != 1:
        return []
    wanted = [WantedUpdate(*row) for row in connection.select(_WANTED, {"of_digest": digest})]
    more = {"update": digest} | ({} if fault is None else {"reason": fault})
    rows = [
        {
            "kind": "update_restored" if fault is None else "update_lost",
            "run": update.run,
            "round": update.round,
            "client": update.client,
            "detail": {"attempt": update.attempt, **more},
        }
        for update in wanted
    ]
    add_events(connection, rows, actor="coordinator", now=now)
    return wanted
