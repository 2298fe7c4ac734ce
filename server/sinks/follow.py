"""Reads the event log and tells a sink what is in it, from where it was the last time.

The log itself is the queue: it is bounded by nothing that a sink could fill, outlives a restart, and no step
of a run waits for anybody who reads it. ``docs/decisions`` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from server.clock import Clock
from server.database.store import Store
from server.monitoring.metrics import Telemetry
from server.sinks.base import Sink, SinkRefused, SinkUnavailable
from shared.files import replace_file
from shared.problems import NotFound, ServiceFault
from shared.schemas import EventView, RunView

__all__ = ["SinkFollower"]

SECONDS = 2.0
LONGEST_SECONDS = 60.0
EVENTS = 200
ENDS = frozenset({"run_completed", "run_stopped", "run_stopped_early"})
TOLD = ENDS | {"run_created", "assignment_taken", "round_completed", "evaluation_received"}

log = logging.getLogger("feddisco.sinks")


@dataclass
class SinkFollower:
    """``find_model`` gives the file of a model by its digest; ``folder`` keeps how far the sink has come."""

    sink: Sink
    store: Store
    clock: Clock
    telemetry: Telemetry
    find_model: Callable[[str], contextlib.AbstractContextManager[Path]]
    folder: Path
    is_down: bool = False

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.sink.name}.json"

    async def run(self) -> None:
        """Until cancelled. A sink that is down is asked again after 2 seconds, then ever more seldom."""
        pause = SECONDS
        while True:
            try:
                has_more = await asyncio.to_thread(self.tell)
                pause = 0.0 if has_more else SECONDS
            except SinkUnavailable as why:
                self._note_outage(why)
                pause = min(max(2 * pause, SECONDS), LONGEST_SECONDS)
            except ServiceFault as fault:
                self._note_outage(SinkUnavailable(fault.detail))
                pause = LONGEST_SECONDS
            except Exception:  # the coordinator does not stop, nor look degraded, for a sink
                log.exception("the sink %s failed", self.sink.name)
                self.telemetry.sink_failures.labels(self.sink.name).inc()
                pause = LONGEST_SECONDS
            await asyncio.sleep(pause)

    def _note_outage(self, why: SinkUnavailable) -> None:
        self.telemetry.sink_failures.labels(self.sink.name).inc()
        if not self.is_down:
            log.warning("the sink %s takes nothing now: %s; it is told later", self.sink.name, why)
        self.is_down = True

    def tell(self) -> bool:
        """Tell the sink of the next events; whether there may be more. Raises :class:`SinkUnavailable`."""
        newest, position = self.store.latest_event_id(), self._read_position()
        position = min(position, newest)  # the database was put back to an earlier day
        events = self.store.events(position, None, EVENTS)
        done = position
        try:
            for event in events:
                if event.kind in TOLD and event.run is not None:
                    self._tell_one(event, event.run)
                done = event.id
        finally:
            if done > position:
                self._keep_position(done)
            self.telemetry.sink_behind.labels(self.sink.name).set(max(newest - done, 0))
        if self.is_down:
            log.info("the sink %s takes what it is told again", self.sink.name)
            self.is_down = False
        return len(events) == EVENTS

    def _tell_one(self, event: EventView, run: str) -> None:
        try:
            self._hand_over(event, run)
        except NotFound:
            return  # the run was deleted since
        except SinkRefused as why:
            self.telemetry.sink_failures.labels(self.sink.name).inc()
            log.warning("the sink %s refuses %s of %s: %s", self.sink.name, event.kind, run, why)

    def _hand_over(self, event: EventView, run: str) -> None:
        if event.kind == "assignment_taken":
            if event.round is not None and event.client is not None:
                self.sink.note_taken(run, event.round, event.client, event.at)
            return
        view = self.store.run_view(run, self.clock())
        match event.kind:
            case "run_created":
                self.sink.begin(view)
            case "round_completed":
                attempt = event.detail.get("attempt")
                self.sink.write_round(view, self.store.round_view(run, event.round or 0, attempt))
            case "evaluation_received":
                for scores in self.store.evaluations(run):
                    if (scores.round, scores.client) == (event.round, event.client):
                        self.sink.write_scores(view, scores)
            case _:
                self._end(view)

    def _end(self, run: RunView) -> None:
        try:
            with self.find_model(run.model) as path:
                self.sink.end(run, path if path.exists() else None)
        except NotFound:
            self.sink.end(run, None)

    def _read_position(self) -> int:
        try:
            return int(json.loads(self._file.read_text())["event"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _keep_position(self, event: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"event": event}).encode())
