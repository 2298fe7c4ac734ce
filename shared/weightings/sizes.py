"""Sizes: every example counts the same."""

from __future__ import annotations

from typing import ClassVar, Literal

from shared.weightings.base import Contribution, Totals, Weighed, Weighting, WeightingRound, make_entry

__all__ = ["SizesWeighting"]


class SizesWeighting(Weighting):
    """Weights in proportion to the number of examples (FedAvg, McMahan et al. 2017)."""

    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks "
        "from Decentralized Data. AISTATS 2017."
    )

    kind: Literal["sizes"] = "sizes"

    def find_dependence(self) -> None:
        return None

    def score_alone(self, own: Contribution, totals: Totals) -> float:
        return own.examples / totals.examples

    def weigh(self, round: WeightingRound) -> Weighed:
        shares = round.size_shares.tolist()
        return Weighed([make_entry(row, n, n) for row, n in zip(round.taken, shares, strict=True)])
