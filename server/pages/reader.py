"""What the pages read: the few methods of the store that they need, and nothing that writes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Protocol

from shared.schemas import (
    ClientView,
    ComparedRun,
    Deletion,
    EvaluationView,
    EventView,
    RoundView,
    RunSummary,
    RunView,
)

__all__ = ["Reader", "newest_events", "stream_of"]

_FIRST_WINDOW = 64
_GROWTH = 8


class Reader(Protocol):
    """A run or round that does not exist is :class:`shared.problems.NotFound`."""

    def runs(self, archived: bool = False) -> Sequence[RunSummary]:
        """``archived``: also those that were put away."""
        ...

    def deletions(self) -> Sequence[Deletion]:
        """Of runs, newest first."""
        ...

    def clients(self) -> Sequence[ClientView]: ...

    def run_view(self, run: str, now: dt.datetime) -> RunView: ...

    def rounds(self, run: str, since: int = 0, until: int | None = None) -> Sequence[RoundView]:
        """Every attempt of the rounds from ``since`` to ``until``, with its ledger."""
        ...

    def round_view(self, run: str, round: int, attempt: int | None = None) -> RoundView:
        """One attempt; the newest if none is named."""
        ...

    def completed_attempts(self, run: str) -> Mapping[int, int]:
        """By round that counts, from 1, the attempt that was completed."""
        ...

    def evaluations(self, run: str) -> Sequence[EvaluationView]: ...

    def events(self, after_id: int, run: str | None, limit: int) -> Sequence[EventView]:
        """Oldest first: at most ``limit`` events with an id above ``after_id``."""
        ...

    def compared(self, names: Sequence[str]) -> Sequence[ComparedRun]:
        """Configurations and scores of many runs; names that no run has are left out."""
        ...

    def newest_categories(
        self, names: Sequence[str]
    ) -> Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]:
        """By run: examples and accuracies by category, of each evaluator of its newest evaluated round."""
        ...

    def mean_weights(self, names: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        """By run and client: its mean weight over the rounds that took its update."""
        ...

    def latest_event_id(self, run: str | None = None) -> int: ...


def stream_of(run: RunView, latest: int) -> str | None:
    """Address of the stream that reports changes of the run; None when nothing can change any more.

    An ended run may change until every client has seen its end: its last model is still scored.
    """
    if run.status.is_terminal and not any(found.status.is_present for found in run.enrolments):
        return None
    return f"/api/v1/runs/{run.run}/events?after={latest}"


def newest_events(store: Reader, run: str, most: int, before: int | None = None) -> tuple[EventView, ...]:
    """The run's last events, or those before an id, at most ``most``, newest first.

    Ids are shared by all runs, so the window to look back over is unknown: it grows by ``_GROWTH`` until it
    holds enough, however long the log is.
    """
    latest = store.latest_event_id(run) if before is None else before - 1
    window = _FIRST_WINDOW
    while True:
        after = max(latest - window, 0)
        found = [event for event in store.events(after, run, window) if event.id <= latest]
        if len(found) >= most or after == 0:
            return tuple(sorted(found, key=lambda event: event.id, reverse=True)[:most])
        window *= _GROWTH
