"""Aggregation rules: what takes the place of the mean of a round's updates, whatever the weights.

Every sum ``sum_k c_k u_k`` of an algorithm becomes ``C R(u; c / C)`` with ``C = sum_k c_k`` and R a weighted
centre of the updates: their mean, or one that a few lying updates cannot move far. "A few" is counted by
weight: whoever has half of the weight decides, so a rule goes with a cap (``max_weight``).

Rules of vectors look at each update whole, by inner products alone; rules of coordinates at each number of
the model by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from shared.frozen import Frozen
from shared.lazy import LazyModule
from shared.problems import InvalidRequest
from shared.weightings.base import Vector

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = [
    "MEAN",
    "AnyRule",
    "ClippedRule",
    "CoordinateRule",
    "GeometricMedianRule",
    "KrumRule",
    "MeanRule",
    "MedianRule",
    "MultiKrumRule",
    "TrimmedMeanRule",
    "VectorRule",
]


class MeanRule(Frozen):
    """The weighted mean: any single update moves it as far as it likes."""

    citation: ClassVar[str] = (
        "McMahan et al.: Communication-Efficient Learning of Deep Networks. AISTATS 2017."
    )

    kind: Literal["mean"] = "mean"


class VectorRule(Frozen):
    """R is ``x + sum_k r_k (u_k - x)``; what is not given to an update stays with x."""

    def coefficients(self, weights: Vector, products: Vector) -> Vector:
        """The r_k, 0 or more, of sum at most one.

        ``weights`` are above 0 and sum to one, shape (K,); ``products`` are the inner products of the
        displacements ``u_k - x``, shape (K, K).
        """
        raise NotImplementedError

    @property
    def updates_needed(self) -> int:
        """Fewer updates than these are not combined."""
        return 1


class CoordinateRule(Frozen):
    """R is made of each coordinate by itself."""

    def centre(self, values: Vector, weights: Vector) -> Vector:
        """Of ``values``, shape (K, M), by ``weights``, above 0 and of sum one, shape (K,); shape (M,)."""
        raise NotImplementedError


# ---------------------------------------------------------------- by vectors


class ClippedRule(VectorRule):
    """Displacements longer than ``norm`` are cut to it, then averaged."""

    citation: ClassVar[str] = (
        "Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? arXiv 1911.07963, 2019."
    )

    kind: Literal["clipped"] = "clipped"
    norm: float | None = Field(None, gt=0, description="None: the median of the round's norms")

    def coefficients(self, weights: Vector, products: Vector) -> Vector:
        norms = np.sqrt(np.diag(products))
        longest = float(np.median(norms)) if self.norm is None else self.norm
        clipped: Vector = weights * np.minimum(1.0, longest / np.maximum(norms, np.finfo(np.float64).tiny))
        return clipped


class _Krum(VectorRule):
    byzantine: int = Field(1, ge=0, le=10_000, description="how many updates of a round may lie")

    @property
    def updates_needed(self) -> int:
        return 2 * self.byzantine + 3

    def ranked(self, products: Vector) -> list[int]:
        """Places of the updates by the sum of squared distances to the K - f - 2 nearest, the least first."""
        clients = len(products)
        if clients < self.updates_needed:
            raise InvalidRequest(
                f"krum with {self.byzantine} lying updates needs {self.updates_needed} updates with weight, "
                f"and the round has {clients}",
                hint="Lower byzantine, or raise quorum and see that weights are above 0.",
            )
        squares = np.diag(products)
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
        np.fill_diagonal(distances, np.inf)
        nearest = np.sort(distances, axis=1)[:, : clients - self.byzantine - 2]
        found: list[int] = np.argsort(nearest.sum(axis=1), kind="stable").tolist()
        return found


class KrumRule(_Krum):
    """The one update that is nearest to its neighbours; weights say only who may be chosen."""

    citation: ClassVar[str] = (
        "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant "
        "Gradient Descent. NeurIPS 2017."
    )

    kind: Literal["krum"] = "krum"

    def coefficients(self, weights: Vector, products: Vector) -> Vector:
        chosen = np.zeros_like(weights)
        chosen[self.ranked(products)[0]] = 1.0
        return chosen


class MultiKrumRule(_Krum):
    """The weighted mean of the updates that Krum ranks first."""

    citation: ClassVar[str] = KrumRule.citation

    kind: Literal["multi-krum"] = "multi-krum"
    keep: int | None = Field(None, ge=1, description="how many; None: all but those that may lie")

    def coefficients(self, weights: Vector, products: Vector) -> Vector:
        ranked = self.ranked(products)
        keep = len(ranked) - self.byzantine if self.keep is None else self.keep
        kept = np.zeros_like(weights)
        kept[ranked[:keep]] = weights[ranked[:keep]]
        shares: Vector = kept / kept.sum()
        return shares


class GeometricMedianRule(VectorRule):
    """The point of least weighted distance to the updates, by the smoothed Weiszfeld algorithm.

    Every iterate is a weighted mean of the updates, so the distances follow from inner products.
    """

    citation: ClassVar[str] = (
        "Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal "
        "Processing 70, 2022 (algorithm 2)."
    )

    kind: Literal["geometric-median"] = "geometric-median"
    iterations: int = Field(100, ge=1, le=10_000, description="at most; it ends when nothing moves any more")
    smoothing: float = Field(1e-6, gt=0, description="distances below it count as this")

    def coefficients(self, weights: Vector, products: Vector) -> Vector:
        squares, point = np.diag(products), weights
        for _ in range(self.iterations):
            toward = np.einsum("kj,j->k", products, point)
            distances = np.sqrt(np.maximum(squares - 2 * toward + np.einsum("k,k->", point, toward), 0.0))
            pulls = weights / np.maximum(distances, self.smoothing)
            before, point = point, pulls / pulls.sum()
            if np.abs(point - before).max() < 1e-12:
                break
        return point


# ---------------------------------------------------------------- by coordinates


class TrimmedMeanRule(CoordinateRule):
    """Of each coordinate the mean without the share ``trim`` of the weight at either end.

    With equal weights, and ``trim`` times their number whole, it is the mean without so many of the least
    and of the largest values.
    """

    citation: ClassVar[str] = (
        "Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal "
        "Statistical Rates. ICML 2018."
    )

    kind: Literal["trimmed-mean"] = "trimmed-mean"
    trim: float = Field(0.2, ge=0, lt=0.5, description="share of the weight that is left out at either end")

    def centre(self, values: Vector, weights: Vector) -> Vector:
        return _trimmed_mean(values, weights, self.trim)


class MedianRule(CoordinateRule):
    """Of each coordinate the weighted median; between two middle values their mean."""

    citation: ClassVar[str] = TrimmedMeanRule.citation

    kind: Literal["median"] = "median"

    def centre(self, values: Vector, weights: Vector) -> Vector:
        return _trimmed_mean(values, weights, _NEARLY_HALF)


_NEARLY_HALF = 0.5 - 2.0**-20
"""What it leaves is a power of two: dividing by it changes no digit. And it is wider than rounding."""


def _trimmed_mean(values: Vector, weights: Vector, trim: float) -> Vector:
    """The mean of what lies between ``trim`` and ``1 - trim`` of the weight, in the order of the values."""
    order = np.argsort(values, axis=0, kind="stable")
    upper = np.cumsum(weights[order], axis=0)
    kept = np.minimum(upper, 1 - trim) - np.maximum(upper - weights[order], trim)
    np.maximum(kept, 0.0, out=kept)
    ordered = np.take_along_axis(values, order, axis=0)
    mean: Vector = (kept * ordered).sum(axis=0) / kept.sum(axis=0)
    return mean


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


AnyRule = Annotated[
    Annotated[
        MeanRule
        | ClippedRule
        | TrimmedMeanRule
        | MedianRule
        | KrumRule
        | MultiKrumRule
        | GeometricMedianRule,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_by_name),
]
"""One of them, told apart by its kind; the kind alone is short for its defaults."""

MEAN: Final = MeanRule()
