"""Runs for the lifecycle's tests, brought to a state by the events that lead there."""

from __future__ import annotations

import datetime as dt
from typing import Any

from server.lifecycle.effects import Record, Wake
from server.lifecycle.events import (
    AggregationFinished,
    AssignmentTaken,
    ClientEnrolled,
    DiscrepancyReceived,
    Event,
    FailureReported,
    PauseRequested,
    StopRequested,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Enrolment, Participant, Policy, Round, Run
from shared.schemas import Role, RunStatus

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def new_run(**policy: Any) -> Run:
    settings: dict[str, Any] = {
        "rounds": 2,
        "seed": 0,
        "min_clients": 3,
        "clients_per_round": None,
        "quorum": 1,
        "deadline": HOUR,
        "max_attempts": 3,
        "autostart": True,
        "needs_discrepancy": False,
    }
    return Run(id="r", status=RunStatus.ENROLLING, policy=Policy(**{**settings, **policy}))


def trainer(client: str, examples: int = 10, **more: Any) -> ClientEnrolled:
    return ClientEnrolled(client, Role.TRAINER, examples, **more)


def evaluator(client: str) -> ClientEnrolled:
    return ClientEnrolled(client, Role.EVALUATOR, 50)


def play(run: Run, *events: Event, now: dt.datetime = NOW) -> Decision:
    """Applies the events one after the other; the last one's decision."""
    decision = Decision(run, ())
    for event in events:
        decision = decide(decision.run, event, now)
    return decision


def enrolled(clients: str = "abc", **policy: Any) -> Run:
    """A run in status enrolling with a trainer for each letter; it starts when asked."""
    return play(new_run(**{"autostart": False, **policy}), *map(trainer, clients)).run


def collecting(clients: str = "abc", **policy: Any) -> Run:
    """A run whose first round waits for a trainer for each letter."""
    settings = {"min_clients": len(clients), **policy}
    asked = new_run(**settings).policy.needs_discrepancy
    discrepancies = map(DiscrepancyReceived, clients if asked else "")
    return play(new_run(**settings), *map(trainer, clients), *discrepancies).run


def aggregating(clients: str = "abc", **policy: Any) -> Run:
    """All updates of the first round are there."""
    return play(collecting(clients, **policy), *(uploaded(c) for c in clients)).run


def paused(run: Run) -> Run:
    return play(run, PauseRequested("lunch")).run


def stopped(run: Run) -> Run:
    return play(run, StopRequested("enough")).run


def completed(run: Run) -> Run:
    """Plays the run to its end, everybody delivering at once."""
    while not run.status.is_terminal:
        current = current_round(run)
        deliveries = [
            UpdateReceived(p.client, current.number, current.attempt)
            for p in current.participants
            if p.status in ("invited", "training")
        ]
        run = play(run, *deliveries, AggregationFinished(current.number, current.attempt)).run
    return run


def taken(client: str, number: int = 1, attempt: int = 1) -> AssignmentTaken:
    return AssignmentTaken(client, number, attempt)


def uploaded(client: str, number: int = 1, attempt: int = 1) -> UpdateReceived:
    return UpdateReceived(client, number, attempt)


def failed(client: str, number: int = 1, attempt: int = 1, reason: str = "out of memory") -> FailureReported:
    return FailureReported(client, number, attempt, reason)


def after_deadline(run: Run) -> Decision:
    return decide(run, TimePassed(), current_round(run).deadline_at)


def current_round(run: Run) -> Round:
    assert run.round is not None
    return run.round


def participant(run: Run, client: str) -> Participant:
    found = current_round(run).participant(client)
    assert found is not None
    return found


def enrolment(run: Run, client: str) -> Enrolment:
    found = run.enrolment(client)
    assert found is not None
    return found


def attempt_of(run: Run) -> tuple[int, int, str]:
    """(number, attempt, status) of the current round."""
    current = current_round(run)
    return current.number, current.attempt, str(current.status)


def participants(run: Run) -> dict[str, str]:
    return {p.client: str(p.status) for p in current_round(run).participants}


def indexes(run: Run) -> dict[str, int | None]:
    return {e.client: e.index for e in run.enrolments}


def kinds(decision: Decision) -> list[str]:
    return [effect.kind for effect in decision.effects if isinstance(effect, Record)]


def record(decision: Decision, kind: str) -> Record:
    """The one record of this kind."""
    (found,) = [e for e in decision.effects if isinstance(e, Record) and e.kind == kind]
    return found


def woken(decision: Decision) -> tuple[str, ...]:
    found = [effect.clients for effect in decision.effects if isinstance(effect, Wake)]
    return found[0] if found else ()
