"""Nash-MTL: weights as the solution of a bargain over the direction of the next model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from shared.lazy import LazyModule
from shared.weightings.base import (
    LedgerEntry,
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    make_rows,
    make_shares,
    multiply,
)

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["NashMtlWeighting", "solve_bargain"]

RIDGE = 1e-8
"""Added to the diagonal of the cosines: updates that cancel each other leave no finite solution otherwise."""

MOST_STEPS = 200


class NashMtlWeighting(Weighting):
    """``p_k = alpha_k / sum``, where ``G' G alpha = 1 / alpha`` element by element (claim 3.2).

    The columns of G are the displacements u_k. The direction ``sum_k alpha_k u_k`` is the one for which the
    product of all gains ``u_k . direction`` is largest among those of one length. The bargain fixes the
    direction only; its length is here that of the mean with these weights. Sizes do not matter. A client
    that did not move has nothing to bargain for, and no weight, unless nobody moved.
    """

    citation: ClassVar[str] = (
        "Navon, Shamsian, Achituve, Maron, Kawaguchi, Chechik, Fetaya: Multi-Task Learning as a Bargaining "
        "Game. ICML 2022."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.UPDATES})

    kind: Literal["nashmtl"] = "nashmtl"

    def weigh(self, round: WeightingRound) -> Weighed:
        products = round.products[:-1, :-1]
        moved = np.diag(products) > 0
        alpha = np.zeros(len(moved))
        if moved.any():
            alpha[moved] = solve_bargain(products[np.ix_(moved, moved)])
        weights = make_shares(alpha if moved.any() else np.ones(len(moved)))
        rows = make_rows(round, weights, alpha, gain=multiply(products, weights))
        return Weighed([_explain(row, bool(moves)) for row, moves in zip(rows, moved, strict=True)])


def _explain(row: LedgerEntry, moved: bool) -> LedgerEntry:
    return row if moved or row.weight else replace(row, reason="its update does not move the model")


def solve_bargain(products: Vector) -> Vector:
    """The positive alpha with ``products alpha = 1 / alpha``, element by element.

    ``products`` (K, K) are inner products of vectors of which none is 0. Damped Newton steps down the convex
    ``a' C a / 2 - sum log a`` over the vectors' cosines C, so that their lengths do not matter; by its
    self-concordance they converge from anywhere (Nesterov and Nemirovskii, 1994).

    >>> solve_bargain(np.diag([1.0, 4.0])).round(6).tolist()  # alpha_k |u_k|^2 = 1 / alpha_k
    [1.0, 0.5]
    """
    lengths = np.sqrt(np.diag(products))
    cosines = products / np.outer(lengths, lengths) + RIDGE * np.eye(len(lengths))
    scaled = np.ones(len(lengths))
    for _ in range(MOST_STEPS):
        slopes = multiply(cosines, scaled) - 1 / scaled
        step = _solve(cosines + np.diag(scaled**-2.0), slopes)
        decrement = float((slopes * step).sum()) ** 0.5
        if decrement < 1e-12:
            break
        scaled = scaled - step / (1 + decrement if decrement > 0.25 else 1.0)
    alpha: Vector = scaled / lengths
    return alpha


def _solve(matrix: Vector, right: Vector) -> Vector:
    """``matrix^-1 right`` of a positive definite matrix, in an order of its own, as :func:`multiply`."""
    rows = np.column_stack([matrix, right])
    for at in range(len(rows)):
        rows[at + 1 :] -= np.outer(rows[at + 1 :, at] / rows[at, at], rows[at])
    found = np.zeros(len(rows))
    for at in reversed(range(len(rows))):
        found[at] = (rows[at, -1] - float((rows[at, :-1] * found).sum())) / rows[at, at]
    return found
