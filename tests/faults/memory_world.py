"""The state machine alone: its runs are kept in memory, as a database would keep them."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from dataclasses import dataclass

from server.lifecycle.effects import Aggregate, Record
from server.lifecycle.events import (
    AggregationFinished,
    AssignmentTaken,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    EvaluationReceived,
    Event,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StopRequested,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Policy, Round, Run
from shared.problems import UpdateInvalid, UpdateRefused
from shared.schemas import EnrolmentStatus, Role, RoundStatus, RunStatus
from tests.faults.history import Attempt, History, Result, Row
from tests.faults.schedules import DEADLINE_SECONDS, Body, Plan, Task

__all__ = ["MemoryWorld"]

START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
SPOILT = b"spoilt"
Key = tuple[int, int]


@dataclass(frozen=True)
class Flight:
    """An aggregation under way, with the updates that were there when it began."""

    key: Key
    model: str
    clients: tuple[str, ...]


class MemoryWorld:
    def __init__(self, plan: Plan) -> None:
        self.presence: dict[Key, float] = {}
        self._plan = plan
        self._now = START
        self._run = Run(
            id="r",
            status=RunStatus.ENROLLING,
            policy=Policy(
                rounds=plan.rounds,
                seed=0,
                min_clients=3,
                clients_per_round=plan.clients_per_round,
                quorum=1,
                deadline=dt.timedelta(seconds=DEADLINE_SECONDS),
                max_attempts=2,
                autostart=True,
                needs_discrepancy=False,
            ),
        )
        self._rounds: dict[Key, Round] = {}
        self._updates: dict[tuple[int, int, str], str] = {}
        self._weights: dict[tuple[int, int, str], float] = {}
        self._models: dict[Key, str] = {}
        self._standing = ["initial"]  # by round, the model that the next one starts from
        self._receipts: list[tuple[str, int, int]] = []
        self._due: list[Key] = []
        self._flights: list[Flight] = []

    # ---------------------------------------------------------------- what the coordinator's shell does

    def _apply(self, event: Event) -> Decision:
        decision = decide(self._run, event, self._now)
        if isinstance(event, RewindRequested):
            self._go_back(event.round)
        self._run = decision.run
        current = () if decision.run.round is None else (decision.run.round,)
        for each in (*decision.ended, *current):
            self._rounds[each.number, each.attempt] = each
        for effect in decision.effects:
            if isinstance(effect, Aggregate):
                self._due.append((effect.round, effect.attempt))
            elif isinstance(effect, Record) and effect.kind == "update_received":
                self._receipts.append((effect.client or "", effect.round or 0, effect.detail["attempt"]))
        return decision

    def _go_back(self, number: int) -> None:
        del self._standing[number + 1 :]
        for (each, attempt), seen in list(self._rounds.items()):
            if each > number and seen.status is RoundStatus.COMPLETED:
                self._rounds[each, attempt] = _moved(seen, RoundStatus.REWOUND)

    # ---------------------------------------------------------------- clients

    def enrol(self, client: str, index: int | None, role: Role) -> None:
        self._apply(ClientEnrolled(client, role, 10, index))

    def ask(self, client: str) -> Task | None:
        enrolment, current = self._run.enrolment(client), self._run.round
        if enrolment is not None and enrolment.status is EnrolmentStatus.AWAY:
            self._apply(ClientSeen(client))
            current = self._run.round
        if current is None or current.status is not RoundStatus.COLLECTING:
            return None
        participant = current.participant(client)
        if participant is None or not participant.status.is_awaited or self._run.status.is_terminal:
            return None
        self._apply(AssignmentTaken(client, current.number, current.attempt))
        return Task(current.number, current.attempt, participant.index, self._standing[current.number - 1])

    def train(self, task: Task) -> Body:
        who = 0 if self._plan.are_alike else task.index
        wrong = "" if task.attempt < 7 else "other"
        return Body(f"update of {who} in {task.round} from {task.model}{wrong}", b"", None)

    def spoil(self, body: Body) -> Body:
        return Body(f"spoilt {body.digest}", SPOILT, None)

    def check(self, client: str, task: Task, body: Body) -> bool:
        event = UpdateReceived(client, task.round, task.attempt)
        try:
            decide(self._run, event, self._now)
        except UpdateRefused:
            if self._updates.get((task.round, task.attempt, client)) != body.digest:
                raise
            return False
        return True

    def deliver(self, client: str, task: Task, body: Body) -> None:
        if body.content == SPOILT:
            raise UpdateInvalid("no tensors in it")
        if self.check(client, task, body):
            self._apply(UpdateReceived(client, task.round, task.attempt))
            self._updates[task.round, task.attempt, client] = body.digest

    def give_up(self, client: str, task: Task) -> None:
        self._apply(FailureReported(client, task.round, task.attempt, "out of memory"))

    def leave(self, client: str) -> None:
        self._apply(ClientLeft(client, "at its own request"))

    def beat(self, client: str, task: Task) -> None:
        """A heartbeat moves nothing in the state machine."""

    def score(self, client: str) -> None:
        for number in range(1, self._run.completed_rounds + 1):
            self._apply(EvaluationReceived(client, number, "accuracy", 0.5, 50))

    # ---------------------------------------------------------------- the operator

    def pause(self) -> None:
        self._apply(PauseRequested())

    def resume(self) -> None:
        self._apply(ResumeRequested())

    def stop(self) -> None:
        self._apply(StopRequested())

    def rewind(self, number: int) -> None:
        self._apply(RewindRequested(number))

    # ---------------------------------------------------------------- coordinators

    def begin_aggregation(self) -> None:
        if not self._due:
            return
        key = self._due.pop()
        if key[0] > len(self._standing):
            return  # the run has gone back behind it: the runner finds it settled
        clients = tuple(
            p.client
            for p in self._rounds[key].participants
            if self._updates.get((*key, p.client)) is not None
        )
        told = [self._updates[*key, client] for client in clients]
        text = "|".join((self._standing[key[0] - 1], *told))
        self._flights.append(Flight(key, hashlib.sha256(text.encode()).hexdigest(), clients))

    def finish_aggregation(self, which: int) -> None:
        if not self._flights:
            return
        flight = self._flights.pop(which % len(self._flights))
        self._apply(AggregationFinished(*flight.key))
        self._models[flight.key] = flight.model
        self._standing.append(flight.model)
        for client in flight.clients:
            self._weights[*flight.key, client] = 1 / len(flight.clients)

    def _find_left(self) -> None:
        """What a coordinator finds at its start, and another one now and then: a round left aggregating."""
        current = self._run.round
        if current is not None and current.status is RoundStatus.AGGREGATING:
            self._due = [(current.number, current.attempt)]

    def pass_time(self, seconds: float) -> None:
        self._now += dt.timedelta(seconds=seconds)
        current = self._run.round
        if current is not None and current.status is RoundStatus.COLLECTING:
            key = (current.number, current.attempt)
            self.presence[key] = self.presence.get(key, 0.0) + seconds
        self._apply(TimePassed())

    def set_clock(self, seconds: float) -> None:
        step = dt.timedelta(seconds=seconds)
        self._now += step
        self._apply(CoordinatorReturned(step))

    def be_away(self, seconds: float) -> None:
        self._due, self._flights = [], []
        absence = dt.timedelta(seconds=seconds)
        self._now += absence
        self._apply(CoordinatorReturned(absence))
        self._find_left()

    def change_coordinator(self) -> None:
        """Another one, which may aggregate the same round a second time."""
        self._find_left()

    def collect(self) -> None:
        """There are no files."""

    def harm(self, draws: random.Random) -> None:
        """There is no disk."""

    def look_around(self, reader: str, history: History) -> None:
        """There is nothing to read."""

    # ---------------------------------------------------------------- the end

    def has_ended(self) -> bool:
        return self._run.status.is_terminal

    def read_result(self) -> Result:
        return Result(
            status=self._run.status,
            rounds=self._run.policy.rounds,
            completed_rounds=self._run.completed_rounds,
            attempts=tuple(self._read_attempt(key) for key in sorted(self._rounds)),
            receipts=tuple(self._receipts),
        )

    def _read_attempt(self, key: Key) -> Attempt:
        seen = self._rounds[key]
        rows = (
            Row(
                p.client,
                p.index,
                p.status,
                self._updates.get((*key, p.client)),
                self._weights.get((*key, p.client)),
                p.reason,
            )
            for p in seen.participants
        )
        return Attempt(*key, seen.status, tuple(rows), seen.reason, self._models.get(key))


def _moved(seen: Round, status: RoundStatus) -> Round:
    return Round(
        number=seen.number,
        attempt=seen.attempt,
        status=status,
        deadline_at=seen.deadline_at,
        participants=seen.participants,
    )
