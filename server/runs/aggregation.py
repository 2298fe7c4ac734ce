"""One aggregation: stored updates in, new model and ledger out. Runs on a thread; imports PyTorch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.database.aggregations import AggregationInput, Update
from server.database.step.facts import AggregationFacts
from server.database.store import Store
from server.lifecycle.events import AggregationFinished
from server.monitoring.metrics import Telemetry
from shared.aggregation.round_end import Arrived, RoundResult, Start, close_round
from shared.algorithms.base import UpdateInfo
from shared.weightings import Contribution, LedgerEntry
from shared.wire import Written

__all__ = ["Aggregation", "close_stored"]

log = logging.getLogger("feddisco.rounds")


@dataclass(frozen=True)
class Aggregation:
    """``hold``: seconds to wait before the result is handed back, a drill for operators."""

    store: Store
    blobs: BlobStore
    integrity: BlobIntegrity
    telemetry: Telemetry
    hold: float

    def compute(self, run: str, number: int, attempt: int) -> tuple[AggregationFinished, AggregationFacts]:
        """What to commit for this attempt; all blobs it names are in the store already.

        Raises:
            StorageUnavailable: nothing is wrong with the round, try again later.
            Problem: the round cannot be aggregated (a diverged model, a missing start model ...).
        """
        started = time.perf_counter()
        given = self.store.aggregation_input(run, number, attempt)
        intact, broken = self._separate_damaged(given.updates)
        with self.blobs.workspace() as folder:
            result = close_stored(given, intact, self.blobs.path, folder)
            facts = self._facts(result)
        self.telemetry.aggregation_seconds.observe(time.perf_counter() - started)
        self.telemetry.set_ledger(run, _named(intact, result.rows))
        if self.hold:
            time.sleep(self.hold)
        excluded = {**broken, **_excluded(intact, result.rows)}
        event = AggregationFinished(number, attempt, tuple(excluded.items()), result.weightless)
        return event, facts

    def _separate_damaged(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, str]]:
        """Updates whose stored bytes are still what the client sent, and the others with the reason."""
        intact, broken = [], {}
        for update in updates:
            if fault := self.integrity.fault(self.blobs.path(update.digest), update.digest):
                log.error("update %s of %s is lost: %s", update.digest, update.client, fault)
                broken[update.client] = f"its stored update {fault}"
            else:
                intact.append(update)
        return intact, broken

    def _facts(self, result: RoundResult) -> AggregationFacts:
        """A round without weight made nothing and keeps the old model; its ledger says why."""
        made = result.files
        files = (made.model, made.scored, made.broadcast, made.private) if made else (None,) * 4
        model, scored, broadcast, private = map(_digest, files)
        return AggregationFacts(
            model=model,
            scored=scored,
            broadcast=broadcast,
            private=private,
            ledger=result.rows,
            blobs=self._adopt(files),
        )

    def _adopt(self, files: Iterable[Written | None]) -> dict[str, int]:
        """The sizes of the result files by digest, each of them in the blob store now."""
        sizes: dict[str, int] = {}
        for written in files:
            if written is not None and written.digest not in sizes:
                sizes[self.blobs.adopt(written.path, written.digest)] = written.bytes
        return sizes


def close_stored(
    given: AggregationInput, updates: Sequence[Update], path: Callable[[str], Path], folder: Path
) -> RoundResult:
    """The round's end from stored rows and files; ``path`` finds a blob. For its replay, too."""
    start = (given.start_broadcast, given.start_private)
    broadcast, private = (None if digest is None else path(digest) for digest in start)
    arrived = [
        Arrived(
            UpdateInfo(update.index, update.examples, update.relative_size, update.steps),
            path(update.digest),
            update.discrepancy,
        )
        for update in updates
    ]
    everyone = [Contribution(row.index, row.examples, row.discrepancy) for row in given.trainers]
    start_files = Start(path(given.start_model), broadcast, private)
    return close_round(given.config, given.manifest, start_files, arrived, everyone, folder)


def _digest(written: Written | None) -> str | None:
    return None if written is None else written.digest


def _named(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> Iterator[tuple[str, LedgerEntry]]:
    client = {update.index: update.client for update in updates}
    return ((client[row.index], row) for row in rows)


def _excluded(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> dict[str, str]:
    return {client: row.reason or "left out" for client, row in _named(updates, rows) if not row.included}
