"""FedLWS: the mean of other weights, each layer of it shrunk as far as its update is long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import (
    Adjustment,
    Discrepancy,
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    distances_to_mean,
    form,
)
from shared.weightings.disco import DiscoWeighting
from shared.weightings.entropy import EntropyWeighting
from shared.weightings.sizes import SizesWeighting
from shared.weightings.uniform import UniformWeighting

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["FedLwsWeighting"]

Mean = Annotated[
    SizesWeighting | UniformWeighting | DiscoWeighting | EntropyWeighting, Field(discriminator="kind")
]


class FedLwsWeighting(Weighting):
    """Layer l of the new model is ``gamma_l sum_k p_k y_k``, ``gamma_l = |x| / (|x| + tau |D|)`` (section 4).

    x is the layer at the round's start, D its mean displacement; tau is ``beta`` times the mean distance of
    the clients' displacements from their plain mean, cut to [``least``, ``most``]. A layer is what its
    parameters are named after: weight and bias of one module.
    """

    citation: ClassVar[str] = (
        "Shi, Li, Zhao, Guo, Chang: FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking. "
        "ICLR 2025."
    )

    kind: Literal["fedlws"] = "fedlws"
    mean: Mean = Field(
        default_factory=SizesWeighting, description="the weights p_k of the mean that is shrunk"
    )
    beta: float = Field(0.03, gt=0)
    least: float = Field(0.01, ge=0, description="bound of tau")
    most: float = Field(0.2, gt=0, description="bound of tau")

    @property
    def needs(self) -> frozenset[Need]:
        return self.mean.needs | {Need.UPDATES}

    @property
    def discrepancy(self) -> Discrepancy | None:
        return self.mean.discrepancy

    def weigh(self, round: WeightingRound) -> Weighed:
        rows = self.mean.weigh(round).rows
        weights = np.array([row.weight for row in rows])
        factors = {name: self._factor(layer, weights) for name, layer in round.layers.items()}
        return Weighed(rows, adjustment=Adjustment(layers=factors))

    def _factor(self, products: Vector, weights: Vector) -> float:
        """gamma_l from the layer's inner products; 1 for a layer of zeros, which would stay at 0."""
        u, x = products[:-1, :-1], math.sqrt(products[-1, -1])
        if x == 0:
            return 1.0
        apart = distances_to_mean(u, np.full(len(weights), 1 / len(weights)))
        tau = float(np.clip(self.beta * apart.mean(), self.least, self.most))
        return x / (x + tau * math.sqrt(form(u, weights)))
