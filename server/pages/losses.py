"""Training loss by round, cached: a completed round never changes, and the loss takes its whole ledger."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from itertools import count

from cachetools import LRUCache

from shared.schemas import RoundStatus, RoundView

__all__ = ["TrainingLosses", "training_loss"]

REMEMBERED_RUNS = 64


def training_loss(round: RoundView) -> float | None:
    """Mean loss of local training, weighted as the model is; None if no weighted client reported one."""
    pairs = [(row.weight, row.loss) for row in round.ledger if row.weight and row.loss is not None]
    total = math.fsum(weight for weight, _ in pairs)
    if total <= 0:
        return None
    mean = math.fsum(weight * loss for weight, loss in pairs) / total
    return mean if math.isfinite(mean) else None


class TrainingLosses:
    """A cache of one process. Two threads may read the same round twice, but never a wrong value."""

    def __init__(self) -> None:
        self._runs: LRUCache[str, dict[int, float | None]] = LRUCache(REMEMBERED_RUNS)
        self._lock = threading.Lock()

    def first_unknown(self, run: str) -> int:
        """The first round that has to be read."""
        with self._lock:
            known = self._runs.get(run, {})
        return next(number for number in count(1) if number not in known)

    def learn(self, run: str, rounds: Iterable[RoundView]) -> Mapping[int, float]:
        """Adds the rounds, in any order; returns every known loss by round."""
        losses = {r.round: training_loss(r) for r in rounds if r.status is RoundStatus.COMPLETED}
        with self._lock:
            known = self._runs[run] = self._runs.get(run, {}) | losses
        return {round: loss for round, loss in sorted(known.items()) if loss is not None}
