"""Uniform: every client counts the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shared.lazy import LazyModule
from shared.weightings.base import (
    Contribution,
    Totals,
    Weighed,
    Weighting,
    WeightingRound,
    make_entry,
    make_shares,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["UniformWeighting"]


class UniformWeighting(Weighting):
    """The same weight for every client of the round."""

    citation: ClassVar[str] = (
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic "
        "Regularization. ICLR 2021."
    )

    kind: Literal["uniform"] = "uniform"

    def find_dependence(self) -> None:
        return None

    def score_alone(self, own: Contribution, totals: Totals) -> float:
        return 1.0

    def weigh(self, round: WeightingRound) -> Weighed:
        weights = make_shares(np.ones(len(round.taken))).tolist()
        columns = zip(round.taken, round.size_shares.tolist(), weights, strict=True)
        return Weighed([make_entry(row, n, p) for row, n, p in columns])
