"""Prometheus metrics of one coordinator process, with a registry of their own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from server.lifecycle.effects import Effect, Record
from shared.problems import Problem
from shared.weightings import LedgerEntry

if TYPE_CHECKING:
    from server.database.run_figures import RunFigures

__all__ = ["CONTENT_TYPE", "Telemetry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


RUN_GAUGES = {
    "round": "Completed rounds",
    "rounds": "Rounds in all",
    "accuracy": "Accuracy of the newest scored round, from 0 to 1, the median of its evaluators",
    "loss": "Loss of the newest scored round, the median of its evaluators",
    "open_seconds": "Seconds since the open round was opened",
    "silent_seconds": "Seconds since any of its clients was heard last",
    "bytes": "Bytes of its files",
}
"""Each is a field of :class:`server.database.run_figures.RunFigures`."""

# a second series for each counter, which says when the process began
disable_created_metrics()  # type: ignore[no-untyped-call]


class Telemetry:
    """What the process has done since its start, and at each scrape the counts from the database."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "feddisco_events",
            "Event log entries written by this process, by kind",
            ["kind"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "feddisco_problems",
            "Requests answered with a problem document, by its code",
            ["code"],
            registry=self.registry,
        )
        self.limited = Counter(
            "feddisco_limited",
            "Requests and connections that a limit refused, by the setting",
            ["setting"],
            registry=self.registry,
        )
        self.received = Counter(
            "feddisco_received_bytes", "Bytes of the updates accepted", registry=self.registry
        )
        self.sent = Counter(
            "feddisco_sent_bytes", "Bytes of models and other files sent to clients", registry=self.registry
        )
        self.updates = Counter("feddisco_updates", "Updates accepted from clients", registry=self.registry)
        self.scrubbed = Counter(
            "feddisco_scrubbed_bytes",
            "Bytes of stored files that were read again to see whether they are intact",
            registry=self.registry,
        )
        self.collected = Counter(
            "feddisco_collected_files",
            "Stored files that were deleted because no run needs them",
            registry=self.registry,
        )
        self.aggregation_seconds = Histogram(
            "feddisco_aggregation_seconds",
            "Seconds that the aggregation of one round took, from reading its updates to the stored model",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.aggregation_failures = Counter(
            "feddisco_aggregation_failures", "Aggregations that failed", registry=self.registry
        )
        self.discrepancy = Gauge(
            "feddisco_discrepancy",
            "Discrepancy d_k of the client in the newest aggregated round, not normalised",
            ["run", "client"],
            registry=self.registry,
        )
        self.weight = Gauge(
            "feddisco_aggregation_weight",
            "Aggregation weight p_k of the client in the newest aggregated round",
            ["run", "client"],
            registry=self.registry,
        )
        self.rows = Gauge(
            "feddisco_stored",
            "Rows in the database, by noun and status; for blobs also their bytes",
            ["noun", "status"],
            registry=self.registry,
        )

        self.sink_behind = Gauge(
            "feddisco_sink_behind_events",
            "Entries of the event log that the sink has not been told yet",
            ["sink"],
            registry=self.registry,
        )
        self.sink_failures = Counter(
            "feddisco_sink_failures",
            "Attempts to tell the sink that failed, and what it refused",
            ["sink"],
            registry=self.registry,
        )
        self.waiting = Gauge(
            "feddisco_run_waiting_since_timestamp_seconds",
            "Unix time since which the run cannot go on; absent for runs that can",
            ["run"],
            registry=self.registry,
        )
        self.runs = {
            name: Gauge(
                f"feddisco_run_{name}",
                f"{words}, of each run that has not ended",
                ["run"],
                registry=self.registry,
            )
            for name, words in RUN_GAUGES.items()
        }

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A gauge that is read at each scrape."""
        Gauge(name, description, registry=self.registry).set_function(read)

    def count_limit(self, setting: str) -> None:
        self.limited.labels(setting).inc()

    def note_refusal(self, problem: Problem) -> None:
        """One that ended a connection, so that no answer of the application counted it."""
        self.count_problem(problem.code)
        if setting := problem.extra.get("limit"):
            self.count_limit(setting)

    def count_problem(self, code: str) -> None:
        self.refusals.labels(code).inc()

    def count_records(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self.events.labels(effect.kind).inc()

    def set_ledger(self, run: str, clients: Iterable[tuple[str, LedgerEntry]]) -> None:
        for client, entry in clients:
            self.weight.labels(run, client).set(entry.weight)
            if entry.discrepancy is not None:
                self.discrepancy.labels(run, client).set(entry.discrepancy)

    def forget_ledgers(self) -> None:
        """Until the next aggregations: those of runs that were deleted are not shown for ever."""
        self.weight.clear()
        self.discrepancy.clear()

    def set_stored(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Counts from the database, by noun and status. What it no longer has is no longer shown."""
        self.rows.clear()
        for noun, numbers in counts.items():
            for status, number in numbers.items():
                self.rows.labels(noun, status).set(number)

    def set_waiting(self, since: Mapping[str, dt.datetime]) -> None:
        self.waiting.clear()
        for run, at in since.items():
            self.waiting.labels(run).set(at.timestamp())

    def set_runs(self, figures: Iterable[RunFigures]) -> None:
        """From the database; runs that have ended are no longer shown."""
        for gauge in self.runs.values():
            gauge.clear()
        for found in figures:
            for name, gauge in self.runs.items():
                value = getattr(found, name)
                if value is not None:
                    gauge.labels(found.run).set(value)

    def render(self) -> bytes:
        return generate_latest(self.registry)
