"""One step of a run: read, decide, write what changed, all in the transaction of the caller."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from server.database.evaluations import add_evaluation
from server.database.session import Reading, Writing
from server.database.step.change import Change
from server.database.step.facts import ConfigFacts, DiscrepancyFacts, Facts, UpdateFacts
from server.database.step.known import KnownRuns
from server.database.step.load import Snapshot
from server.database.step.sightings import read_sightings
from server.database.step.write_run import write
from server.database.tables import participants
from server.lifecycle.events import (
    AssignmentTaken,
    ChangeRequested,
    DiscrepancyReceived,
    EvaluationReceived,
    Event,
    FailureReported,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Policy
from shared.problems import DiscrepancyAlreadySubmitted, InvalidConfiguration
from shared.schemas import EnrolmentStatus, Metrics, ParticipantStatus
from shared.scores import find_score, name_score

__all__ = ["Evaluated", "take_assignments", "take_change", "take_evaluation", "take_step"]


def take_step(
    connection: Writing,
    run: str,
    event: Event,
    facts: Facts | None,
    known: KnownRuns,
    *,
    actor: str,
    now: dt.datetime,
) -> Decision:
    """Raises what ``decide`` raises, and :class:`StaleVersion` if another process moved the run meanwhile.

    A TimePassed is told here when the participants of the open round were last heard of.
    """
    before = known.lock(connection, run)
    if _is_repetition(connection, before, event, facts):
        return Decision(before.run, ())
    if isinstance(event, TimePassed):
        event = TimePassed(read_sightings(connection, before.run))
    decision = decide(before.run, event, now)
    if decision.run != before.run or decision.effects:
        change = Change(before, decision, event, facts, actor, now)
        write(connection, change)
        known.follow(connection, change)
    return decision


def take_assignments(
    connection: Writing, run: str, events: Sequence[AssignmentTaken], known: KnownRuns, *, now: dt.datetime
) -> list[Decision]:
    """As :func:`take_step` for each of them, in a few statements for all; raises what any of them raises."""
    before = known.lock(connection, run)
    state, decisions = before.run, list[Decision]()
    for event in events:
        decisions.append(decide(state, event, now))
        state = decisions[-1].run
    effects = tuple(effect for decision in decisions for effect in decision.effects)
    if state != before.run or effects:
        takers = tuple(event.client for event in events)
        change = Change(before, Decision(state, effects), events[0], None, takers[0], now, takers)
        write(connection, change)
        known.follow(connection, change)
    return decisions


def take_change(
    connection: Writing,
    run: str,
    changes: Mapping[str, Any],
    known: KnownRuns,
    *,
    actor: str,
    now: dt.datetime,
) -> Decision:
    """Change fields of the run's configuration; where they are so already, nothing happens.

    Raises what :meth:`shared.config.RunConfig.change` and :func:`take_step` raise, and
    :class:`InvalidConfiguration` if past weights depend on the number of rounds.
    """
    before = known.lock(connection, run)
    old, new = before.config, before.config.change(changes)
    if new == old:
        return Decision(before.run, ())
    if new.rounds != old.rounds and old.weighting.goes_by_rounds:
        raise InvalidConfiguration(
            f"the weights of {old.weighting.kind} depend on the number of rounds, also those of past rounds",
            hint="Stop the run, or let it come to its end.",
        )
    if new.rounds != old.rounds and old.local.schedule.goes_by_rounds:
        raise InvalidConfiguration(
            f"the learning rates of the schedule {old.local.schedule.kind} depend on the number of rounds, "
            "also those of past rounds",
            hint="Stop the run, or let it come to its end.",
        )
    if new.rounds != old.rounds and old.calibration is not None:
        raise InvalidConfiguration(
            "the run's last round calibrates its classifier, for which its sites and its model are prepared",
            hint="Let it come to its end, or stop it, and begin another from its model (feddisco run create "
            "--weights).",
        )
    told = tuple((name, getattr(old, name), getattr(new, name)) for name in changes)
    event = ChangeRequested(Policy.of(new), tuple(each for each in told if each[1] != each[2]))
    return take_step(connection, run, event, ConfigFacts(new), known, actor=actor, now=now)


class Evaluated(NamedTuple):
    """``decision``: what follows where the run goes by its scores; None otherwise, and for a repetition."""

    is_new: bool
    decision: Decision | None


def take_evaluation(
    connection: Writing,
    run: str,
    number: int,
    client: str,
    metrics: Metrics,
    model: str | None,
    known: KnownRuns,
    *,
    actor: str,
    now: dt.datetime,
) -> Evaluated:
    """Add an evaluation, and take the step that follows from it, in one transaction.

    Raises what :func:`server.database.evaluations.add_evaluation` and :func:`take_step` raise.
    """
    config = known.configs.of(connection, run)
    if config.needs_scores:
        known.lock(connection, run)  # before the event log is locked, as every step does
    if not add_evaluation(connection, run, number, client, metrics, model, actor=actor, now=now):
        return Evaluated(False, None)
    if not config.needs_scores:
        return Evaluated(True, None)
    name = config.deciding_metric
    value, metric = find_score(metrics, name), name_score(metrics, name)
    event = EvaluationReceived(client, number, metric, value, metrics.examples)
    return Evaluated(True, take_step(connection, run, event, None, known, actor=actor, now=now))


def _is_repetition(connection: Reading, before: Snapshot, event: Event, facts: Facts | None) -> bool:
    """Whether a repetition brings nothing new; raises if it brings something else."""
    if isinstance(event, UpdateReceived) and isinstance(facts, UpdateFacts):
        return _is_same_update(connection, before, event, facts)
    if isinstance(event, DiscrepancyReceived) and isinstance(facts, DiscrepancyFacts):
        return _is_same_discrepancy(before, event, facts)
    if isinstance(event, FailureReported) and not _is_current(before, event):
        row = _read_stored(connection, before, event)
        return row is not None and row.status is ParticipantStatus.FAILED  # the first reason stands
    return False


_STORED = sa.select(participants.c.update, participants.c.status).where(
    participants.c.run == sa.bindparam("of_run", type_=sa.String),
    participants.c.round == sa.bindparam("of_round", type_=sa.BigInteger),
    participants.c.attempt == sa.bindparam("of_attempt", type_=sa.BigInteger),
    participants.c.client == sa.bindparam("of_client", type_=sa.String),
)


def _is_same_update(connection: Reading, before: Snapshot, event: UpdateReceived, facts: UpdateFacts) -> bool:
    current = before.run.round
    if current is not None and _is_current(before, event):
        participant = current.participant(event.client)
        is_accepted = participant is not None and participant.status.is_accepted
        return is_accepted and before.updates.get(event.client) == facts.digest
    row = _read_stored(connection, before, event)
    return row is not None and row.status.is_accepted and row.update == facts.digest


def _is_current(before: Snapshot, event: UpdateReceived | FailureReported) -> bool:
    current = before.run.round
    return current is not None and (current.number, current.attempt) == (event.round, event.attempt)


def _read_stored(connection: Reading, before: Snapshot, event: UpdateReceived | FailureReported) -> Any:
    parameters: dict[str, Any] = {
        "of_run": before.run.id,
        "of_round": event.round,
        "of_attempt": event.attempt,
        "of_client": event.client,
    }
    return connection.select(_STORED, parameters).one_or_none()


def _is_same_discrepancy(before: Snapshot, event: DiscrepancyReceived, facts: DiscrepancyFacts) -> bool:
    stored = before.discrepancies.get(event.client)
    if stored is None:
        return False
    if stored != (facts.metric, facts.value):
        raise DiscrepancyAlreadySubmitted(
            f"{event.client!r} submitted {stored[1]!r} ({stored[0]}) to run {before.run.id!r} already;"
            f" {facts.value!r} ({facts.metric}) is another value",
            hint="The first value stands for the whole run.",
        )
    enrolment = before.run.enrolment(event.client)
    # who left and came back with the same data is asked again, and answers the same
    return enrolment is not None and enrolment.status is not EnrolmentStatus.AWAITING_DISCREPANCY
