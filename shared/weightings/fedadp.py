"""FedAdp: clients whose update points where the mean points count more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.weightings.base import (
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    form,
    make_rows,
    make_shares,
    multiply,
    softmax,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["FedAdpWeighting", "angles_to_mean"]

ANGLE, ROUNDS = "angle", "rounds"


class FedAdpWeighting(Weighting):
    """``p_k = n_k exp(f(theta_k)) / sum``, ``f(t) = alpha (1 - exp(-exp(-alpha (t - 1))))`` (section IV).

    theta_k is the angle in radians between the client's displacement and the mean of all by size, averaged
    over the rounds that the client took part in (the paper's rounds, where all take part in each).
    """

    citation: ClassVar[str] = (
        "Wu, Wang: Fast-Convergent Federated Learning with Adaptive Weighting. IEEE Transactions on "
        "Cognitive Communications and Networking 7(4), 2021."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.UPDATES})
    remembers: ClassVar[bool] = True

    kind: Literal["fedadp"] = "fedadp"
    alpha: float = Field(5.0, gt=0, le=100, description="how much the angle decides")

    def weigh(self, round: WeightingRound) -> Weighed:
        angles = angles_to_mean(round.products[:-1, :-1], round.size_shares)
        rounds = round.recall(ROUNDS, 0.0) + 1
        smooth = round.recall(ANGLE, 0.0) * (rounds - 1) / rounds + angles / rounds
        contributions = self.alpha * (1 - np.exp(-np.exp(-self.alpha * (smooth - 1))))
        scores = round.size_shares * np.exp(contributions)
        # the largest contribution is alpha: relative to it, nothing overflows
        weights = make_shares(round.size_shares * softmax(contributions))
        rows = make_rows(round, weights, scores, angle=angles, mean_angle=smooth)
        return Weighed(rows, memory=round.remember(ANGLE, smooth) | round.remember(ROUNDS, rounds))


def angles_to_mean(products: Vector, weights: Vector) -> Vector:
    """Angles in [0, pi] between vectors and their weighted mean; pi / 2 for a vector of length 0.

    ``products`` (K, K) are their inner products.

    >>> angles_to_mean(np.eye(2), np.array([0.5, 0.5])).round(6).tolist()  # 45 degrees each
    [0.785398, 0.785398]
    """
    with_mean = multiply(products, weights)
    lengths = np.sqrt(np.diag(products) * form(products, weights))
    cosines = np.divide(with_mean, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    angles: Vector = np.arccos(np.clip(cosines, -1.0, 1.0))
    return angles
