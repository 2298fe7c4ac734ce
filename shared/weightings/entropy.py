"""Entropy: weights by size and by how evenly a client's labels are spread over the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import (
    Discrepancy,
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

__all__ = ["EntropyWeighting"]


class EntropyWeighting(Weighting):
    """``p_k = n_k exp(H(D_k) / temperature) / sum``, H the entropy of the client's labels.

    Clients are asked for what Disco asks for: with C classes the divergence from uniform is
    ``d_k = ln C - H(D_k)``, so the weights are those of ``n_k exp(-d_k / temperature)``.
    """

    citation: ClassVar[str] = (
        "Khan: FedEmerge: An Entropy-Guided Federated Learning Method for Sensor Networks and Edge "
        "Intelligence. Sensors 25(12), 2025; FedImp: Enhancing Federated Learning Convergence With "
        "Impurity-Based Weighting. IEEE Transactions on Artificial Intelligence 7(3), 2026."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.NUMBER})

    kind: Literal["entropy"] = "entropy"
    temperature: float = Field(1.0, gt=0, description="the higher, the nearer to sizes; in nats")

    @property
    def discrepancy(self) -> Discrepancy:
        return Discrepancy("kl", "uniform")

    def weigh(self, round: WeightingRound) -> Weighed:
        d = np.array([row.discrepancy for row in round.taken], dtype=np.float64)
        # Relative to the smallest: exp of a large negative number would leave nobody a weight.
        relative = round.size_shares * np.exp(-(d - d.min()) / self.temperature)
        scores = round.size_shares * np.exp(-d / self.temperature)
        return Weighed(make_rows(round, make_shares(relative), scores))
