"""Traces by OpenTelemetry: each completed round is one, with its draw, polls, uploads and aggregation.

They are made from what is stored of a round, when it is complete, so that no call of a client does anything
for them. The ids follow from run and round: told twice, it is the same trace.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from server.sinks.base import SinkRefused, SinkUnavailable, list_round_numbers, list_scores
from shared.problems import InvalidConfiguration
from shared.schemas import EvaluationView, LedgerRow, RoundView, RunView
from shared.versions import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

__all__ = ["TraceSink"]

SECONDS = 10
HANDED_OUT = 100_000
"""Moments at which clients were handed their part, of rounds that are open."""
SPANS = 512
"""In one call, as OpenTelemetry's own batches."""
FOR_GOOD = frozenset({400, 413, 422})
"""Answers that say of the spans themselves that they are not taken."""
Attributes = Mapping[str, str | int | float]


def _make_exporter(url: str, note_status: Callable[[int], None]) -> SpanExporter:
    """By OTLP over HTTP; headers, such as a token, as OpenTelemetry's own variables say.

    ``note_status`` is told of each answer: the exporter itself says no more than that it failed.
    """
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise InvalidConfiguration(
            "FEDDISCO_OTLP_URL needs a package that is not installed", hint="pip install 'feddisco[otel]'"
        ) from error

    def note(answer: requests.Response, *_: Any, **__: Any) -> None:
        note_status(answer.status_code)

    session = requests.Session()
    session.hooks["response"].append(note)
    return OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=SECONDS, session=session)


class TraceSink:
    name = "traces"

    def __init__(self, url: str) -> None:
        self._exporter = _make_exporter(url, self._note_status)
        self._status: int | None = None
        self._taken: LRUCache[tuple[str, int, str], dt.datetime] = LRUCache(HANDED_OUT)

    def begin(self, run: RunView) -> None:
        """A run is no trace: it may last for weeks."""

    def note_taken(self, run: str, round: int, client: str, at: dt.datetime) -> None:
        self._taken[run, round, client] = at

    def write_round(self, run: RunView, round: RoundView) -> None:
        ended = round.completed_at or round.closed_at or round.opened_at
        spans = Spans(run.run, round.round)
        about: Attributes = {"attempt": round.attempt, "algorithm": run.algorithm, "weighting": run.weighting}
        numbers = {k: v for k, v in list_round_numbers(round).items() if not k.startswith("weight/")}
        spans.add("round", round.opened_at, ended, {**about, **numbers})
        spans.add("draw", round.opened_at, round.opened_at, {"participants": len(round.ledger)})
        for row in round.ledger:
            self._add_client(spans, round, row, ended)
        spans.add("aggregation", round.closed_at or ended, ended)
        self._export(spans)
        for row in round.ledger:  # not before: it may have to be told again
            self._taken.pop((round.run, round.round, row.client), None)

    def _add_client(self, spans: Spans, round: RoundView, row: LedgerRow, ended: dt.datetime) -> None:
        """From the opening to the poll that took the assignment, and from there to the upload."""
        about: Attributes = {"client": row.client}
        taken = self._taken.get((round.run, round.round, row.client))
        if taken is not None:
            spans.add(f"poll {row.client}", round.opened_at, taken, about)
        numbers = {"bytes": row.bytes, "steps": row.steps, "weight": row.weight, "seconds": row.seconds}
        known = {name: value for name, value in numbers.items() if value is not None}
        spans.add(
            f"upload {row.client}",
            taken or round.opened_at,
            row.uploaded_at or round.closed_at or ended,
            {**about, "status": row.status.value, **known},
        )

    def write_scores(self, run: RunView, scores: EvaluationView) -> None:
        if scores.round:
            spans = Spans(run.run, scores.round)
            about: Attributes = {"client": scores.client, "examples": scores.examples}
            spans.add(
                f"evaluation {scores.client}", scores.at, scores.at, {**about, **list_scores(run, scores)}
            )
            self._export(spans)

    def end(self, run: RunView, model: Path | None) -> None:
        """Its last round has said all."""

    def _export(self, spans: Spans) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        for first in range(0, len(spans.made), SPANS):
            self._status = None
            if self._exporter.export(spans.made[first : first + SPANS]) is SpanExportResult.SUCCESS:
                continue
            if self._status in FOR_GOOD:
                raise SinkRefused(f"it answers {self._status}")
            raise SinkUnavailable(
                "it does not answer" if self._status is None else f"it answers {self._status}"
            )

    def _note_status(self, status: int) -> None:
        self._status = status


class Spans:
    """Spans of one round: the first one, ``round``, is the parent of the others."""

    def __init__(self, run: str, round: int) -> None:
        self._run, self._round = run, round
        self._trace = int(_digest("trace", run, round)[:32], 16)
        self.made: list[ReadableSpan] = []

    def add(self, name: str, start: dt.datetime, end: dt.datetime, about: Attributes | None = None) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        is_root = name == "round"
        resource = Resource({"service.name": "feddisco", "service.version": VERSION})
        attributes: Attributes = {"feddisco.run": self._run, "feddisco.round": self._round}
        named = {f"feddisco.{key}": value for key, value in (about or {}).items()}
        self.made.append(
            ReadableSpan(
                name=name,
                context=self._find_context(name),
                parent=None if is_root else self._find_context("round"),
                resource=resource,
                attributes={**attributes, **named},
                start_time=_nanoseconds(start),
                end_time=max(_nanoseconds(start), _nanoseconds(end)),
                instrumentation_scope=InstrumentationScope("feddisco", VERSION),
            )
        )

    def _find_context(self, name: str) -> SpanContext:
        from opentelemetry.trace import SpanContext, TraceFlags

        span = int(_digest("span", self._run, self._round, name)[:16], 16)
        return SpanContext(self._trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _nanoseconds(at: dt.datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000
