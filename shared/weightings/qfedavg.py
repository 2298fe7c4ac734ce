"""q-FedAvg: clients on which the model is bad count more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import (
    Adjustment,
    Contribution,
    Need,
    Weighed,
    Weighting,
    WeightingRound,
    make_rows,
    make_shares,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["QFedAvgWeighting"]

SMALLEST = 1e-10
"""Added to a loss, as in the authors' code: 0 to a negative power is no number."""


class QFedAvgWeighting(Weighting):
    """``p_k = n_k F_k^q / sum``, of a mean displacement that is taken ``step`` times (algorithm 2).

    F_k is the loss of the model that client k received, over all of its training examples. With L = 1 / lr
    the paper's update is ``x - sum_k Delta_k / sum_k h_k``, ``Delta_k = F_k^q L (x - y_k)``,
    ``h_k = q F_k^(q-1) |L (x - y_k)|^2 + L F_k^q``: these weights, and
    ``step = sum n_k F_k^q / sum n_k (F_k^q + q F_k^(q-1) |x - y_k|^2 / lr)``, at most 1. The paper draws
    clients by size and sums them alike; where all take part or are drawn alike, n_k stands in the sums. It
    trains without momentum m; with it, lr / (1 - m) is what a gradient moves a client by. q = 0 is sizes.
    """

    citation: ClassVar[str] = (
        "Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning. ICLR 2020."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.START_LOSS, Need.UPDATES})

    kind: Literal["qfedavg"] = "qfedavg"
    q: float = Field(
        1.0, ge=0, le=20, description="how much more a client with a higher loss counts; 0: sizes"
    )

    def find_refusal(self, row: Contribution) -> str | None:
        """F_k^q is a weight of a loss of 0 or more only; below, it would turn the update round."""
        below = row.start_loss is not None and row.start_loss < 0
        return "its loss of the model that it received is below 0" if below else None

    def weigh(self, round: WeightingRound) -> Weighed:
        losses = np.array([row.start_loss for row in round.taken], dtype=np.float64)
        n, q = round.size_shares, self.q
        lengths = np.diag(round.products)[:-1]  # |u_k|^2
        # Relative to the largest loss: the same quotients, without overflow.
        largest = float(losses.max()) + SMALLEST
        relative = (losses + SMALLEST) / largest
        shares = n * relative**q
        curvature = n * q * relative ** (q - 1) * lengths / (round.step_length * largest)
        step = math.fsum(shares) / (math.fsum(shares) + math.fsum(curvature))
        with np.errstate(over="ignore"):
            scores = n * (losses + SMALLEST) ** q
        rows = make_rows(round, make_shares(shares), scores, loss=losses)
        return Weighed(rows, adjustment=Adjustment(step=step))
