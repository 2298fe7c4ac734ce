"""FedAWA: weights that are moved, round by round, to where the updates agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import (
    Adam,
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    distances_to_mean,
    make_rows,
    multiply,
    sizes_of,
    softmax,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["FedAwaWeighting"]

LOGIT = "logit"


class FedAwaWeighting(Weighting):
    """``p = softmax(t)``; t goes down ``sum_k p_k dist(y_k, x) + sum_k p_k |u_k - sum_j p_j u_j|`` (eq. 3).

    u_k = y_k - x; t is kept from round to round, and begins with the logarithm of the sizes: a client that
    comes later begins as far from the others as its size is. Adam, new in each round, makes ``steps`` steps.
    The distance to the round's start x is each client's own, as in the authors' code.
    """

    citation: ClassVar[str] = (
        "Shi, Zhao, Zhang, Zhou, Guo, Chang: FedAWA: Adaptive Optimization of Aggregation Weights in "
        "Federated Learning Using Client Vectors. CVPR 2025."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.UPDATES})
    remembers: ClassVar[bool] = True

    kind: Literal["fedawa"] = "fedawa"
    steps: int = Field(1, ge=1, le=1000, description="of Adam in a round")
    learning_rate: float = Field(0.001, gt=0, description="of Adam")
    distance: Literal["cosine", "squared"] = Field(
        "cosine",
        description="of a client's model from the round's start: 1 - cos, or the mean square",
    )

    def weigh(self, round: WeightingRound) -> Weighed:
        products = round.products[:-1, :-1]
        costs = self._costs(round.products, round.parameters)
        logits, adam = round.recall(LOGIT, _begin(round)), Adam(len(costs))
        for _ in range(self.steps):
            logits = adam.step(logits, _slopes(softmax(logits), costs, products), self.learning_rate)
        weights = softmax(logits)
        apart = distances_to_mean(products, weights)
        rows = make_rows(round, weights, None, distance=costs, apart=apart)
        return Weighed(rows, memory=round.remember(LOGIT, logits))

    def _costs(self, products: Vector, size: int) -> Vector:
        """dist(y_k, x), from the inner products of the displacements and x."""
        u, x = np.diag(products)[:-1], float(products[-1, -1])
        costs: Vector
        if self.distance == "squared":
            costs = u / size
            return costs
        along = products[-1, :-1] + x  # <x, y_k>
        lengths = np.sqrt(x * np.maximum(u + 2 * products[-1, :-1] + x, 0.0))
        costs = 1 - np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0)
        return costs


def _begin(round: WeightingRound) -> Vector:
    """The logits of clients that have none yet: logarithms of their sizes, on the scale of those remembered.

    Shares of this round would not do: a remembered logit is of another round's clients.
    """
    known = round.memory.get(LOGIT, {})
    sizes = {row.index: row.examples for row in (*round.everyone, *round.taken) if row.examples > 0}
    scales = [logit - math.log(sizes[index]) for index, logit in known.items() if index in sizes]
    if not scales:
        return np.log(round.size_shares)
    begin: Vector = np.log(sizes_of(round.taken)) + math.fsum(scales) / len(scales)
    return begin


def _slopes(weights: Vector, costs: Vector, products: Vector) -> Vector:
    """The derivatives of the objective by the logits; ``products`` (K, K) are those of the displacements."""
    distances = distances_to_mean(products, weights)
    pulls = np.divide(weights, distances, out=np.zeros_like(weights), where=distances > 0)
    to_mean = multiply(products, weights) * pulls.sum() - multiply(products, pulls)
    by_weight = costs + distances + to_mean
    slopes: Vector = weights * (by_weight - float((weights * by_weight).sum()))
    return slopes
