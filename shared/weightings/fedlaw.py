"""FedLAW: weights, and by how much the model shrinks, learned on labelled examples at the coordinator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.problems import InvalidConfiguration
from shared.weightings.base import (
    Adam,
    Adjustment,
    Need,
    Proxy,
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

LARGEST_EXPONENT = 60.0
"""Of gamma: models that are e^60 times as long are beyond float32 soon, and no model at all."""


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
        logits = self._find_logits(round)
        weights, gamma = softmax(logits[:-1]), math.exp(logits[-1])
        rows = make_rows(round, weights, None, logit=logits[:-1])
        return Weighed(rows, adjustment=Adjustment(shrink=gamma))

    def _find_logits(self, round: WeightingRound) -> Vector:
        begin = self.begin(round)
        if round.learned is not None:
            return np.array(round.learned) if round.learned else begin
        if round.proxy is None:
            raise InvalidConfiguration("fedlaw needs labelled examples, of which there are none here.")
        return self.learn(begin, round.indices, round.proxy)

    def begin(self, round: WeightingRound) -> Vector:
        return np.append(np.log(round.size_shares), 0.0)  # the last is log gamma

    def learn(self, begin: Vector, indices: Sequence[int], proxy: Proxy) -> Vector:
        logits, adam = begin, Adam(len(begin))
        for epoch in range(self.epochs):
            rate = self.learning_rate * 0.5 ** (epoch // HALVED_EVERY)
            for batch in range(proxy.batches):
                logits = _check(adam.step(logits, _slopes(logits, indices, proxy, batch), rate))
        return logits


def _check(logits: Vector) -> Vector:
    """Raises InvalidConfiguration where their exponentials are no numbers any more."""
    if not np.isfinite(logits).all() or abs(float(logits[-1])) > LARGEST_EXPONENT:
        raise InvalidConfiguration(
            "fedlaw: what it learns of the weights grows without bound",
            hint="Lower weighting.learning_rate, which is Adam's.",
        )
    return logits


def _slopes(logits: Vector, indices: Sequence[int], proxy: Proxy, batch: int) -> Vector:
    """The derivatives of a batch's loss by the logits and by log gamma."""
    weights, gamma = softmax(logits[:-1]), math.exp(logits[-1])
    coefficients = gamma * weights
    found = proxy.slopes(dict(zip(indices, coefficients.tolist(), strict=True)), batch)
    by_coefficient = np.array([found[index] for index in indices])
    shared = float((coefficients * by_coefficient).sum())
    return np.append(coefficients * by_coefficient - weights * shared, shared)
