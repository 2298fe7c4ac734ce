"""FedPALS: weights with which the clients' labels together come near to a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.problems import InvalidConfiguration
from shared.weightings.base import (
    Need,
    Target,
    Vector,
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

__all__ = ["FedPalsWeighting", "minimise_over_simplex"]


class FedPalsWeighting(Weighting):
    """``p = argmin over the simplex of |T - sum_k p_k D_k|^2 + penalty sum_k p_k^2 / n_k`` (section 4).

    D_k are the clients' shares of each class, T those of the target. The paper divides by the numbers of
    examples; here n_k are shares of the round, so that a penalty means the same in a large round and a small
    one (the paper's is this one times the round's examples). A large penalty gives sizes, 0 the best mix.
    """

    citation: ClassVar[str] = (
        "Listo Zec, Breitholtz, Johansson: Overcoming Label Shift in Targeted Federated Learning. "
        "arXiv:2411.03799, 2024."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.COUNTS})

    kind: Literal["fedpals"] = "fedpals"
    penalty: float = Field(
        0.01, ge=0, le=1e9, description="what unequal weights cost; larger: nearer to sizes"
    )
    target: Target = Field(
        "uniform", description="the label distribution to be near to: uniform, or one share a class"
    )

    def weigh(self, round: WeightingRound) -> Weighed:
        counts = np.array([row.counts for row in round.taken], dtype=np.float64)  # (clients, classes)
        mixes = counts / counts.sum(axis=1, keepdims=True)
        target = self._target(mixes.shape[1])
        gram = mixes @ mixes.T + np.diag(self.penalty / round.size_shares)
        weights = minimise_over_simplex(gram, mixes @ target)
        return Weighed(make_rows(round, weights, None, distance=np.linalg.norm(mixes - target, axis=1)))

    def _target(self, classes: int) -> Vector:
        if isinstance(self.target, str):
            return np.full(classes, 1 / classes)
        if len(self.target) != classes:
            raise InvalidConfiguration(
                f"weighting.target: {len(self.target)} shares for {classes} classes",
                hint="Give one share a class, in the order of the class contract.",
            )
        return np.array(self.target) / sum(self.target)


def minimise_over_simplex(gram: Vector, linear: Vector) -> Vector:
    """``argmin over p >= 0, sum p = 1 of p' gram p / 2 - linear' p``; ``gram`` (K, K), positive semidefinite.

    An active-set method: who is at 0 is decided, the others follow from linear equations.

    >>> minimise_over_simplex(np.eye(3), np.array([0.5, 0.5, -9.0])).round(6).tolist()
    [0.5, 0.5, 0.0]
    """
    weights = np.full(len(linear), 1 / len(linear))
    free = np.ones(len(linear), dtype=bool)
    for _ in range(50 * len(linear)):  # each pass lowers the objective; far fewer are needed
        wanted = _solve(gram, linear, free)
        below = free & (wanted < 0)
        if below.any():  # as far towards it as nobody falls below 0; who is at 0 stays there
            lengths = weights[below] / (weights[below] - wanted[below])
            weights = weights + lengths.min() * (wanted - weights)
            at_zero = free & (wanted < 0) & (weights <= 1e-15)
            free &= ~at_zero
            weights[~free] = 0.0
            continue
        weights = wanted
        slopes = gram @ weights - linear
        level = slopes[free].mean()
        worth = np.where(free, 0.0, slopes - level)
        if worth.min() >= -1e-12 * max(1.0, float(np.abs(slopes).max())):
            break
        free[int(worth.argmin())] = True
    return make_shares(weights)


def _solve(gram: Vector, linear: Vector, free: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Vector:
    """The minimiser with sum 1 among those that are 0 where not ``free``, whatever its signs."""
    at = np.flatnonzero(free)
    system = np.ones((len(at) + 1, len(at) + 1))
    system[:-1, :-1] = gram[np.ix_(at, at)]
    system[-1, -1] = 0.0
    wanted = np.zeros(len(linear))
    wanted[at] = np.linalg.lstsq(system, np.append(linear[at], 1.0), rcond=None)[0][:-1]
    return wanted
