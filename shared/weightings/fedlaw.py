"""FedLAW: weights, and by how much the model shrinks, learned on labelled examples at the coordinator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.problems import InvalidConfiguration
from shared.weightings.base import (
    Adam,
    Adjustment,
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    make_rows,
    softmax,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["FedLawWeighting"]

HALVED_EVERY = 20
"""Epochs between two halvings of Adam's rate, as in the authors' code."""


class FedLawWeighting(Weighting):
    """``x = gamma sum_k softmax(l)_k y_k``, gamma = exp(g); Adam learns l and g on examples (section 4).

    Each round begins with the logarithm of the sizes, and gamma = 1. The authors' ``exp`` form; they train on
    200 images that belong to no client, in batches of 128. In evaluation mode, with the running statistics of
    the round's start.
    """

    citation: ClassVar[str] = (
        "Li, Lin, Shang, Wu: Revisiting Weighted Aggregation in Federated Learning with Neural Networks. "
        "ICML 2023."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.DATA})

    kind: Literal["fedlaw"] = "fedlaw"
    examples: int = Field(200, ge=1, description="the first ones of those dealt to no client")
    batch_size: int = Field(128, ge=1)
    epochs: int = Field(20, ge=1, le=10_000)
    learning_rate: float = Field(0.01, gt=0, description="of Adam; halved every 20 epochs")

    @property
    def proxy_size(self) -> tuple[int, int]:
        return self.examples, self.batch_size

    def weigh(self, round: WeightingRound) -> Weighed:
        logits = np.append(np.log(round.size_shares), 0.0)  # the last is log gamma
        learned = self._learn(logits, round)
        weights, gamma = softmax(learned[:-1]), math.exp(learned[-1])
        rows = make_rows(round, weights, None, logit=learned[:-1])
        return Weighed(rows, adjustment=Adjustment(shrink=gamma))

    def _learn(self, logits: Vector, round: WeightingRound) -> Vector:
        if round.proxy is None:
            raise InvalidConfiguration("fedlaw needs labelled examples, of which there are none here.")
        adam = Adam(len(logits))
        for epoch in range(self.epochs):
            rate = self.learning_rate * 0.5 ** (epoch // HALVED_EVERY)
            for batch in range(round.proxy.batches):
                logits = adam.step(logits, _slopes(logits, round, batch), rate)
        return logits


def _slopes(logits: Vector, round: WeightingRound, batch: int) -> Vector:
    """The derivatives of a batch's loss by the logits and by log gamma."""
    assert round.proxy is not None
    weights, gamma = softmax(logits[:-1]), math.exp(logits[-1])
    coefficients = gamma * weights
    found = round.proxy.slopes(dict(zip(round.indices, coefficients.tolist(), strict=True)), batch)
    by_coefficient = np.array([found[index] for index in round.indices])
    shared = float((coefficients * by_coefficient).sum())
    return np.append(coefficients * by_coefficient - weights * shared, shared)
