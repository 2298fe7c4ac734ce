"""FedDG-GA: clients that lose by averaging gain weight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import Need, Vector, Weighed, Weighting, WeightingRound, make_rows, make_shares

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["FedDgGaWeighting"]

WEIGHT, LOSS = "weight", "loss"


class FedDgGaWeighting(Weighting):
    """``a_k <- a_k + step_t G_k / max_j |G_j|``, cut to [0, 1], then divided by the sum (section 3.3).

    The gap G_k is the loss of the averaged model less that of the client's own before it was averaged; the
    step falls linearly from ``step`` equal weights to none. A round learns the gaps of the one before: a
    client's loss of the model that it receives now, less the one of the model that it sent last. With partial
    participation that model is older, and the clients of a round share what they had together. The paper
    measures on held-out examples; here it is each client's training examples.
    """

    citation: ClassVar[str] = (
        "Zhang, Xu, Yao, Zhang, Tian, Wang: Federated Domain Generalization with Generalization Adjustment. "
        "CVPR 2023."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.START_LOSS, Need.END_LOSS})
    goes_by_rounds: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["feddgga"] = "feddgga"
    step: float = Field(0.2, gt=0, le=1, description="of the first change, in shares of an equal weight")
    centred: bool = Field(
        True, description="take the mean from the gaps, as in the paper; the authors' code does not"
    )

    def weigh(self, round: WeightingRound) -> Weighed:
        before = round.recall(WEIGHT, _equal_share(round))
        gaps = _column(row.start_loss for row in round.taken) - round.recall(LOSS, math.nan)
        moved = np.clip(before + self._moves(gaps, round), 0.0, 1.0)
        weights = make_shares(moved) if moved.any() else make_shares(before)
        after = weights * math.fsum(before)
        own = _column(row.end_loss for row in round.taken)
        rows = make_rows(round, weights, moved, before=before, gap=gaps)
        return Weighed(rows, memory=round.remember(WEIGHT, after) | round.remember(LOSS, own))

    def _moves(self, gaps: Vector, round: WeightingRound) -> Vector:
        """By how much each weight changes: 0 for a client whose gap is not known (NaN)."""
        moves, known = np.zeros_like(gaps), np.isfinite(gaps)
        if not known.any():
            return moves
        values = gaps[known] - (gaps[known].mean() if self.centred else 0.0)
        largest = float(np.abs(values).max())
        # The authors' code counts rounds from 0, and takes the step of its last round but one.
        left = max(0.0, 1 - (round.number - 3) / round.rounds)
        if largest > 0:
            moves[known] = self.step * left * _equal_share(round) * values / largest
        return moves


def _equal_share(round: WeightingRound) -> float:
    return 1 / max(len(round.everyone), len(round.taken))


def _column(values: Iterable[float | None]) -> Vector:
    return np.array(list(values), dtype=np.float64)
