"""A coordinator's own objects over a real database and real files, without HTTP and without its event loop.

What its tasks do by themselves (deadlines, aggregations, collection) is done here when the schedule says so.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from server.app import make_coordinator, prepare
from server.clock import Clock
from server.coordinator import Coordinator
from server.database.step.facts import AggregationFacts
from server.lifecycle.events import AggregationDelayed, AggregationFinished, TimePassed
from server.runs.aggregation import Aggregation
from server.runs.client_views import run_for
from server.runs.intake import Offer
from server.runs.layout import RunLayout, layout_of
from server.runs.runner import ACTOR
from shared.config import RunConfig
from shared.problems import Conflict, NotFound, ServiceFault
from shared.schemas import (
    EnrolmentRequest,
    Evaluate,
    Failure,
    InitialBlob,
    Metrics,
    Progress,
    Role,
    RoundStatus,
    RunRequest,
    Train,
    UpdateReport,
)
from tests.faults.history import Attempt, History, Look, Result, read_attempt, read_result
from tests.faults.schedules import CLIENTS, DEADLINE_SECONDS, JUDGE, Body, Plan, Task
from tests.helpers.live_coordinator import CLASSES, MANIFEST, TASK, file_of, settings_for, sha256

__all__ = ["RUN", "StoredWorld"]

RUN = "demo"
EXAMPLES = 10
LONGEST_FLIGHT = 300.0
"""Seconds: a coordinator's own files are named sooner than anybody collects them."""
Key = tuple[int, int]
_COMPILED: dict[Any, Any] = {}


@dataclass(frozen=True)
class Flight:
    """An aggregation that has been computed and is not committed yet."""

    coordinator: Coordinator
    begun_at: float
    event: AggregationFinished
    facts: AggregationFacts


class StoredWorld:
    """``coordinators``: so many on one database and folder; with SQLite only one may be."""

    def __init__(self, plan: Plan, database_url: str, folder: Path, coordinators: int = 1) -> None:
        self.presence: dict[Key, float] = {}
        self._plan = plan
        self._settings = settings_for(database_url, folder, lost_update_seconds=1200)
        self._monotonic = 0.0
        self._wall = dt.datetime.fromtimestamp(time.time(), dt.UTC)
        self._all = [self._start() for _ in range(coordinators)]
        self._chosen = 0
        self._flights: list[Flight] = []
        self._seen_files: set[Path] = set()
        self._spare: dict[str, bytes] = {}  # what an operator has in a backup
        self._create()

    # ---------------------------------------------------------------- coordinators and time

    def _start(self) -> Coordinator:
        clock = Clock(lambda: self._wall, lambda: self._monotonic)
        coordinator = make_coordinator(self._settings, clock)
        # what SQLAlchemy has compiled for one engine serves all, else that is what a schedule costs
        coordinator.store.engine.update_execution_options(compiled_cache=_COMPILED)
        prepare(coordinator)
        return coordinator

    @property
    def _at(self) -> Coordinator:
        return self._all[self._chosen]

    def close(self) -> None:
        for coordinator in self._all:
            coordinator.close()

    def be_away(self, seconds: float) -> None:
        """All are killed: nothing of what they held in memory is left."""
        self._flights.clear()
        for coordinator in self._all:
            coordinator.store.engine.dispose()
            coordinator.threads.close()
            coordinator.runner.close()
        self._move_time(seconds)
        self._all = [self._start() for _ in self._all]

    def change_coordinator(self) -> None:
        self._chosen = (self._chosen + 1) % len(self._all)

    def _move_time(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += dt.timedelta(seconds=seconds)

    def pass_time(self, seconds: float) -> None:
        """In pieces, after each of which every coordinator looks at its clock and at the deadlines."""
        while seconds > 0:
            piece = min(seconds, 150.0)
            seconds -= piece
            self._move_time(piece)
            current = self._at.store.run_state(RUN).round
            if current is not None and current.status is RoundStatus.COLLECTING:
                key = (current.number, current.attempt)
                self.presence[key] = self.presence.get(key, 0.0) + piece
            self._look_at_time()

    def set_clock(self, seconds: float) -> None:
        self._wall += dt.timedelta(seconds=seconds)
        self._look_at_time()

    def _look_at_time(self) -> None:
        for coordinator in self._all:
            coordinator.timekeeper.keep()
        for coordinator in self._all:
            for run in coordinator.store.overdue(coordinator.clock()):
                coordinator.runner.commit(run, TimePassed(), actor=ACTOR)

    # ---------------------------------------------------------------- the run and its clients

    def _create(self) -> None:
        at, model = self._at, file_of(0.0)
        incoming = at.blobs.take(model, max_bytes=10_000, expected=sha256(model), announced_bytes=len(model))
        at.blobs.keep(incoming)
        config: dict[str, Any] = {
            "name": RUN,
            "task": TASK,
            "classes": CLASSES,
            "rounds": self._plan.rounds,
            "min_clients": 3,
            "clients_per_round": self._plan.clients_per_round,
            "quorum": 1,
            "weighting": {"kind": "sizes"},
            "round_deadline_seconds": DEADLINE_SECONDS,
            "max_attempts": 2,
            "keep_updates": self._plan.keep_updates,
            "max_norm": 1e9,
        }
        initial = InitialBlob.model_validate({"digest": sha256(model), "manifest": MANIFEST})
        at.control.create(RunRequest(config=RunConfig.model_validate(config), initial=initial), "admin")
        self._layout: RunLayout = layout_of(at.store.run_view(RUN, self._wall))
        for client in (*CLIENTS, JUDGE):
            at.store.register(client, sha256(client.encode()), "test", self._wall)
        self._note_files()

    def enrol(self, client: str, index: int | None, role: Role) -> None:
        request = EnrolmentRequest(task=TASK, examples=EXAMPLES, classes=CLASSES, index=index, role=role)
        self._at.enrolments.enrol(RUN, client, request, self._layout)

    def ask(self, client: str) -> Task | None:
        self._at.assignments.mark_returned(client)
        found = self._at.assignments.take_next(client)
        if not isinstance(found, Train):
            return None
        return Task(found.round, found.attempt, found.index, found.model, found.again)

    def train(self, task: Task) -> Body:
        """A number that follows from who trains what, so that the same task gives the same bytes."""
        who = 0 if self._plan.are_alike else task.index
        wrong = 7 if task.attempt >= 7 else 0
        value = float(int(sha256(f"{who} {task.round} {task.model} {wrong}".encode())[:4], 16) % 1000)
        content = file_of(value)
        return Body(sha256(content), content, value)

    def spoil(self, body: Body) -> Body:
        content = body.content[:-3]
        return Body(sha256(content), content, None)

    def _offer(self, client: str, task: Task, body: Body) -> Offer:
        report = UpdateReport(attempt=task.attempt, steps=3, examples=EXAMPLES)
        return Offer(RUN, task.round, client, report, body.digest, self._layout, len(body.content))

    def check(self, client: str, task: Task, body: Body) -> bool:
        return self._at.intake.check(self._offer(client, task, body)) is None

    def deliver(self, client: str, task: Task, body: Body) -> None:
        self._at.intake.accept_small(self._offer(client, task, body), body.content, len(body.content))
        self._note_files()

    def give_up(self, client: str, task: Task) -> None:
        failure = Failure(attempt=task.attempt, code="out-of-memory", reason="out of memory")
        self._at.intake.report_failure(RUN, task.round, client, failure)

    def leave(self, client: str) -> None:
        self._at.enrolments.leave(RUN, client)

    def beat(self, client: str, task: Task) -> None:
        self._at.store.progress(RUN, task.round, client, Progress(attempt=task.attempt), self._at.clock())

    def score(self, client: str) -> None:
        found = self._at.assignments.take_next(client)
        if isinstance(found, Evaluate):
            metrics = Metrics(loss=1.0, accuracy=0.5, examples=EXAMPLES)
            self._at.intake.accept_evaluation(RUN, found.round, client, metrics, found.model)

    def look_around(self, reader: str, history: History) -> None:
        """What the reader is shown of the run, and which files it may fetch."""
        store = self._at.store
        view = run_for(reader, store.run_view(RUN, self._at.clock(), reader))
        shown = {row.client for row in view.enrolments}
        if view.current_round is not None:
            shown |= {row.client for row in view.current_round.ledger}
        history.looks += [Look(reader, f"the row of {name}", name == reader, True) for name in shown]
        for sent in history.sent:
            if sent.client == reader or any(
                own.digest == sent.digest for own in history.sent if own.client == reader
            ):
                continue
            given = store.blob_readable(reader, sent.digest)
            history.looks.append(Look(reader, f"an update of {sent.client}", False, given))

    # ---------------------------------------------------------------- the operator

    def pause(self) -> None:
        self._at.control.pause(RUN, "", "admin")

    def resume(self) -> None:
        self._restore()
        self._at.control.resume(RUN, "admin")

    def stop(self) -> None:
        self._at.control.stop(RUN, "", "admin")

    def rewind(self, number: int) -> None:
        self._at.control.rewind(RUN, number, "spoilt", "admin")

    # ---------------------------------------------------------------- what its tasks do

    def begin_aggregation(self) -> None:
        at = self._at
        for found in at.store.aggregating():
            run, number, attempt = found.run, found.round, found.attempt
            work = Aggregation(
                store=at.store,
                blobs=at.blobs,
                integrity=at.integrity,
                faults=at.faults,
                moves=at.intake.moves,
                telemetry=at.telemetry,
                patience=self._settings.lost_update_seconds,
                hold=0.0,
                clock=at.clock,
            )
            try:
                event, facts = work.compute(run, number, attempt)
            except ServiceFault as fault:
                at.runner.commit(run, AggregationDelayed(number, attempt, fault.detail), actor=ACTOR)
                raise
            self._note_files()
            self._flights.append(Flight(at, self._monotonic, event, facts))

    def finish_aggregation(self, which: int) -> None:
        if not self._flights:
            return
        flight = self._flights.pop(which % len(self._flights))
        try:
            flight.coordinator.runner.commit(RUN, flight.event, actor=ACTOR, facts=flight.facts)
        except (Conflict, NotFound):
            return  # settled meanwhile
        for digest in flight.facts.blobs:
            self._spare[digest] = self._at.blobs.path(digest).read_bytes()

    def collect(self) -> None:
        if any(self._monotonic - flight.begun_at > LONGEST_FLIGHT for flight in self._flights):
            return
        self._at.runner.collect_unneeded()
        self._at.runner.collect_strays()

    def harm(self, draws: random.Random) -> None:
        """A bit of a stored file flips, or the file is gone."""
        files = [path for path in self._files() if path.is_file()]
        path = draws.choice(sorted(files))
        if draws.random() < 0.3:
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        path.write_bytes(content)
        self._set_age(
            path, more_ns=draws.randrange(1, 10**9)
        )  # what no look at the file shows, the scrub finds

    def _restore(self) -> None:
        """The operator puts back the models that are lost; updates come again from the clients."""
        blobs = self._at.blobs
        view = self._at.store.run_view(RUN, self._at.clock())
        for digest in {view.initial_model, view.model}:
            content = self._spare.get(digest, file_of(0.0))
            if self._at.faults.find(digest) is not None and sha256(content) == digest:
                taken = blobs.take(content, max_bytes=10_000, expected=digest, announced_bytes=len(content))
                blobs.keep(taken)
                self._at.faults.find(digest)

    # ---------------------------------------------------------------- files; their age goes by this clock

    def _files(self) -> list[Path]:
        return list(self._at.blobs.folder.glob("[0-9a-f][0-9a-f]/*"))

    def _note_files(self) -> None:
        for path in self._files():
            if path not in self._seen_files:
                self._set_age(path)
                self._seen_files.add(path)

    def _set_age(self, path: Path, more_ns: int = 0) -> None:
        at = int(self._wall.timestamp()) * 10**9 + more_ns
        os.utime(path, ns=(at, at))

    # ---------------------------------------------------------------- the end

    def has_ended(self) -> bool:
        return self._at.store.run_state(RUN).status.is_terminal

    def read_result(self) -> Result:
        store = self._at.store
        view = store.run_view(RUN, self._at.clock())
        result = read_result(view, store.rounds(RUN), store.events(run=RUN, limit=10_000))
        attempts = tuple(map(self._with_value, store.rounds(RUN)))
        return Result(result.status, result.rounds, result.completed_rounds, attempts, result.receipts)

    def _with_value(self, view: Any) -> Attempt:
        attempt = read_attempt(view)
        path = None if attempt.model is None else self._at.blobs.path(attempt.model)
        if path is None or not path.is_file() or sha256(path.read_bytes()) != attempt.model:
            return attempt
        numbers = np.concatenate([tensor.ravel() for tensor in load_file(path).values()])
        assert np.ptp(numbers) <= 1e-5 * max(1.0, abs(numbers[0])), (
            "the updates are constant, the model is not"
        )
        return replace(attempt, value=float(numbers[0]))
