"""One aggregation: stored updates in, new model and ledger out. Runs on a thread; imports PyTorch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.blobs import BlobStore
from server.database.facts import AggregationFacts, AggregationInput, Update
from server.database.store import Store
from server.intact import Intact
from server.lifecycle.events import AggregationFinished
from server.telemetry import Telemetry
from shared.algorithms.base import UpdateInfo
from shared.closing import Arrived, Closed, Start, close_round
from shared.weighting import Contribution, LedgerEntry
from shared.wire import Written

__all__ = ["Aggregation"]

log = logging.getLogger("feddisco.rounds")


@dataclass(frozen=True)
class Aggregation:
    """``hold``: seconds to wait before the result is handed back, a drill for operators."""

    store: Store
    blobs: BlobStore
    intact: Intact
    telemetry: Telemetry
    hold: float

    def of(self, run: str, number: int, attempt: int) -> tuple[AggregationFinished, AggregationFacts]:
        """What to commit for this attempt; all blobs it names are in the store already.

        Raises:
            StorageUnavailable: nothing is wrong with the round, try again later.
            Problem: the round cannot be aggregated (a diverged model, a missing start model ...).
        """
        started = time.perf_counter()
        given = self.store.aggregation_input(run, number, attempt)
        intact, broken = self._sorted_out(given.updates)
        with self.blobs.workspace() as folder:
            closed = close_round(
                given.config,
                given.manifest,
                self._start(given),
                [self._arrived(update) for update in intact],
                [Contribution(row.index, row.examples, row.discrepancy) for row in given.trainers],
                folder,
            )
            facts = self._facts(closed)
        self.telemetry.aggregation_seconds.observe(time.perf_counter() - started)
        self.telemetry.ledger(run, _named(intact, closed.rows))
        if self.hold:
            time.sleep(self.hold)
        excluded = {**broken, **_excluded(intact, closed.rows)}
        event = AggregationFinished(number, attempt, tuple(excluded.items()), closed.weightless)
        return event, facts

    def _sorted_out(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, str]]:
        """Updates whose stored bytes are still what the client sent, and the others with the reason."""
        intact, broken = [], {}
        for update in updates:
            if fault := self.intact.fault(self.blobs.path(update.digest), update.digest):
                log.error("update %s of %s is lost: %s", update.digest, update.client, fault)
                broken[update.client] = f"its stored update {fault}"
            else:
                intact.append(update)
        return intact, broken

    def _start(self, given: AggregationInput) -> Start:
        return Start(
            self.blobs.path(given.start_model),
            self._path(given.start_broadcast),
            self._path(given.start_private),
        )

    def _arrived(self, update: Update) -> Arrived:
        info = UpdateInfo(update.index, update.examples, update.relative_size, update.steps)
        return Arrived(info, self.blobs.path(update.digest), update.discrepancy)

    def _facts(self, closed: Closed) -> AggregationFacts:
        """A round without weight made nothing and keeps the old model; its ledger says why."""
        made = closed.made
        files = (made.model, made.scored, made.broadcast, made.private) if made else (None,) * 4
        model, scored, broadcast, private = map(_digest, files)
        return AggregationFacts(
            model=model,
            scored=scored,
            broadcast=broadcast,
            private=private,
            ledger=closed.rows,
            blobs=self._adopted(files),
        )

    def _adopted(self, files: Iterable[Written | None]) -> dict[str, int]:
        """The sizes of the result files by digest, each of them in the blob store now."""
        sizes: dict[str, int] = {}
        for written in files:
            if written is not None and written.digest not in sizes:
                sizes[self.blobs.adopt(written.path, written.digest)] = written.bytes
        return sizes

    def _path(self, digest: str | None) -> Path | None:
        return None if digest is None else self.blobs.path(digest)


def _digest(written: Written | None) -> str | None:
    return None if written is None else written.digest


def _named(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> Iterator[tuple[str, LedgerEntry]]:
    client = {update.index: update.client for update in updates}
    return ((client[row.index], row) for row in rows)


def _excluded(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> dict[str, str]:
    return {client: row.reason or "left out" for client, row in _named(updates, rows) if not row.included}
