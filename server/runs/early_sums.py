"""Updates are summed while others are still on their way, so that a round's end costs one of them, not all.

That is a guess, never a decision: that all participants will come. The round's end takes what was summed if
it is the beginning of the very sum that it makes, of the same files with the same coefficients, and sums anew
otherwise. Nothing is kept on the disk: after a restart, too, it is summed anew.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.database.store import Store
from shared.algorithms.base import UpdateInfo
from shared.problems import NotFound
from shared.schemas import ParticipantStatus, RoundStatus
from shared.weightings import Contribution

if TYPE_CHECKING:
    from server.database.aggregations import AggregationInput, Update
    from server.lifecycle.state import Participant, Run
    from shared.aggregation import RunningSum
    from shared.aggregation.early import ExpectedSum

__all__ = ["EarlySums"]

Key = tuple[str, int, int]  # run, round, attempt

LEAST_BYTES = 2**20
"""Smaller updates are summed in no time at the round's end."""

log = logging.getLogger("feddisco.rounds")


class EarlySums:
    """The sums that are begun, of one attempt a run. Used from several threads.

    ``most_bytes`` bounds the memory of all of them together: what does not fit is summed at the round's end.
    """

    def __init__(self, store: Store, blobs: BlobStore, integrity: BlobIntegrity, most_bytes: int) -> None:
        self.least_bytes = LEAST_BYTES
        self._store = store
        self._blobs = blobs
        self._integrity = integrity
        self._most_bytes = most_bytes
        self._begun: dict[str, _Begun] = {}  # by run
        self._queued: set[Key] = set()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "feddisco-early")

    def note(self, run: str, round: int, attempt: int, update_bytes: int) -> None:
        """An update is accepted: what can be summed now is, in the background."""
        key = (run, round, attempt)
        with self._lock:
            if update_bytes < self.least_bytes or not self._most_bytes or key in self._queued:
                return
            self._queued.add(key)
        try:
            self._thread.submit(self._advance, key)
        except RuntimeError:  # closed
            return

    def take(self, run: str, round: int, attempt: int) -> list[RunningSum]:
        """What has been summed of the attempt, which is the caller's from now on."""
        with self._lock:
            begun = self._begun.get(run)
            if begun is None or begun.key != (run, round, attempt):
                return []
            del self._begun[run]
        with begun.adding:
            return [] if begun.is_spoilt else list(begun.sums)

    def forget(self, run: str) -> None:
        """What was summed of it is not to be used."""
        with self._lock:
            self._begun.pop(run, None)

    def follow(self, run: Run) -> None:
        """The run has moved: sums of an attempt that is not open any more are forgotten."""
        begun = self._begun.get(run.id)
        if begun is None:
            return
        if not _is_open(run, begun.key):
            self.forget(run.id)

    def close(self) -> None:
        """Wait for the update that is being added."""
        with self._lock:
            self._begun.clear()
        self._thread.shutdown(cancel_futures=True)

    # ------------------------------------------------------------ on the thread

    def _advance(self, key: Key) -> None:
        with self._lock:
            self._queued.discard(key)
        try:
            self.advance(*key)
        except Exception as error:  # whatever it is, the round's end meets it, and says so
            log.debug("updates of round %d of %s are not summed early: %s", key[1], key[0], error)
            self.forget(key[0])

    def advance(self, run: str, round: int, attempt: int) -> None:
        """Add the updates whose turn it is."""
        current = self._store.run_state(run).round
        if current is None or (current.number, current.attempt) != (round, attempt):
            return
        if current.status is not RoundStatus.COLLECTING:
            return
        if not all(_may_come(participant) for participant in current.participants):
            self.forget(run)
            return
        given = self._store.aggregation_input(run, round, attempt)
        begun = self._find((run, round, attempt), given, [one.index for one in current.participants])
        if begun is not None:
            self._add(begun, {update.index: update for update in given.updates})

    def _find(self, key: Key, given: AggregationInput, indices: Sequence[int]) -> _Begun | None:
        """What was begun of this attempt, or the beginning; None if there is none to be made."""
        with self._lock:
            begun = self._begun.get(key[0])
        if begun is not None and begun.key == key:
            return begun
        self._forget_ended()
        expected = _expect(given, indices)
        needed = sum(map(_count_bytes, expected))
        with self._lock:
            self._begun.pop(key[0], None)
            used = sum(other.bytes for other in self._begun.values())
            if not expected or used + needed > self._most_bytes:
                return None
            begun = self._begun[key[0]] = _Begun(key, expected, indices, needed)
        return begun

    def _forget_ended(self) -> None:
        """Of rounds that another coordinator closed, or that were closed while their sum was begun."""
        with self._lock:
            known = list(self._begun.values())
        for begun in known:
            try:
                is_open = _is_open(self._store.run_state(begun.key[0]), begun.key)
            except NotFound:  # deleted
                is_open = False
            with self._lock:
                if not is_open and self._begun.get(begun.key[0]) is begun:
                    del self._begun[begun.key[0]]

    def _add(self, begun: _Begun, arrived: Mapping[int, Update]) -> None:
        for index in begun.order[begun.added :]:
            update = arrived.get(index)
            if update is None:
                return
            if self._integrity.find_fault(update.digest) is not None:
                self.forget(begun.key[0])
                return
            with begun.adding, self._blobs.local(update.digest) as path:
                with self._lock:
                    if self._begun.get(begun.key[0]) is not begun:
                        return  # taken, or forgotten
                begun.add(update, path)


class _Begun:
    """The sums of one attempt, as far as they have come; ``order``: by client index."""

    def __init__(self, key: Key, expected: Sequence[ExpectedSum], order: Sequence[int], bytes: int) -> None:
        from shared.aggregation import RunningSum

        self.key = key
        self.order = order
        self.bytes = bytes
        self.added = 0  # of ``order``
        self.is_spoilt = False
        self.adding = threading.Lock()
        self.sums = [RunningSum(one.specs, one.group) for one in expected]
        self._coefficients = [one.coefficients for one in expected]

    def add(self, update: Update, path: Path) -> None:
        from shared.aggregation import UpdateFile

        info = UpdateInfo(update.index, update.examples, update.relative_size, update.steps)
        file = UpdateFile(info, path, update.digest)
        self.is_spoilt = True
        for coefficients, running in zip(self._coefficients, self.sums, strict=True):
            if coefficient := coefficients.get(update.index):
                running.add(file, coefficient)
        self.is_spoilt = False
        self.added += 1


def _is_open(run: Run, key: Key) -> bool:
    current = run.round
    return (
        current is not None
        and not run.status.is_terminal
        and current.status.is_open
        and (run.id, current.number, current.attempt) == key
    )


def _may_come(participant: Participant) -> bool:
    return participant.status.is_awaited or participant.status is ParticipantStatus.UPLOADED


def _expect(given: AggregationInput, indices: Sequence[int]) -> list[ExpectedSum]:
    from shared.aggregation.early import expect_sums

    everyone = {row.index: Contribution(row.index, row.examples, row.discrepancy) for row in given.trainers}
    return expect_sums(
        given.config,
        given.manifest,
        given.start_memory,
        [everyone[index] for index in indices],
        list(everyone.values()),
        number=given.round,
    )


def _count_bytes(expected: ExpectedSum) -> int:
    """Of its totals, which are float32 or float64."""
    return sum(math.prod(spec.shape) * (8 if spec.dtype == "F64" else 4) for spec in expected.specs)
