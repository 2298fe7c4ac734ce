"""Training loss by round, cached: a completed attempt never changes, and the loss takes its whole ledger."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping

from cachetools import LRUCache

from shared.schemas import RoundStatus, RoundView
from shared.scores import weighted_mean

__all__ = ["TrainingLosses", "training_loss"]

REMEMBERED_RUNS = 64


def training_loss(round: RoundView) -> float | None:
    """Mean loss of local training, weighted as the model is; None if no weighted client reported one."""
    pairs = [(row.loss, row.weight) for row in round.ledger if row.weight and row.loss is not None]
    if math.fsum(weight for _, weight in pairs) <= 0:
        return None
    mean = weighted_mean(pairs)
    return mean if math.isfinite(mean) else None


class TrainingLosses:
    """A cache of one process. Two threads may read the same round twice, but never a wrong value."""

    def __init__(self) -> None:
        self._runs: LRUCache[str, dict[tuple[int, int], float | None]] = LRUCache(REMEMBERED_RUNS)
        self._lock = threading.Lock()

    def find(
        self, run: str, attempts: Mapping[int, int], read: Callable[[int, int], Iterable[RoundView]]
    ) -> Mapping[int, float]:
        """The losses by round; ``read`` reads the rounds from one to another, which are not known yet.

        ``attempts``: by round that counts, the attempt that was completed. So nothing is left of rounds that
        a run went back before, however often it did.
        """
        with self._lock:
            before = self._runs.get(run, {})
        known = {key: before[key] for key in attempts.items() if key in before}
        if missing := [number for number, attempt in attempts.items() if (number, attempt) not in known]:
            known |= {
                (round.round, round.attempt): training_loss(round)
                for round in read(min(missing), max(missing))
                if round.status is RoundStatus.COMPLETED
            }
        with self._lock:
            self._runs[run] = known
        losses = {number: known.get((number, attempt)) for number, attempt in sorted(attempts.items())}
        return {number: loss for number, loss in losses.items() if loss is not None}
