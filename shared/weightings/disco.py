"""Disco: weights by size and by how far a client's label distribution is from the target.

FedDisco (Ye et al., ICML 2023, eq. 6): ``p_k = ReLU(n_k - a d_k + b) / sum``. The paper does not say
that ``d_k`` is normalised to sum to one over the round; the released code does it, and only so are
the published a and b usable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.lazy import LazyModule
from shared.problems import InvalidRequest, WeightlessRound
from shared.vocabulary import AnyMetric
from shared.weightings.base import (
    AskedTarget,
    Contribution,
    Discrepancy,
    LedgerEntry,
    Need,
    Totals,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    make_entry,
    make_shares,
    sizes_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

__all__ = ["DiscoWeighting", "weights"]

Normalise = Literal["round", "none", "all_clients"]
OnAllZero = Literal["sizes", "uniform", "raise"]


class DiscoWeighting(Weighting):
    """FedDisco (Ye et al., ICML 2023, eq. 6): ``p_k = ReLU(n_k - a d_k + b) / sum``."""

    citation: ClassVar[str] = (
        "Ye, Xu, Wang, Xu, Chen, Wang: FedDisco: Federated Learning with Discrepancy-Aware Collaboration. "
        "ICML 2023."
    )
    asks: ClassVar[frozenset[Need]] = frozenset({Need.NUMBER})

    kind: Literal["disco"] = "disco"
    a: float = Field(0.5, ge=0, description="how much a discrepancy costs")
    b: float = Field(0.1, description="what every client is given")
    metric: AnyMetric = "kl"
    normalise: Normalise = Field(
        "round", description="over whom the discrepancies (and sizes) are made to sum to one"
    )
    on_all_zero: OnAllZero = "sizes"
    target: AskedTarget = Field(
        "uniform",
        description="the label distribution to be near to: uniform, one share a class, or that of all "
        "trainers together (global)",
    )

    @property
    def discrepancy(self) -> Discrepancy:
        return Discrepancy(self.metric, self.target)

    def find_dependence(self) -> str | None:
        if self.normalise != "all_clients":
            return f"weighting.normalise {self.normalise} takes the clients of one round; take all_clients"
        if self.on_all_zero != "raise":
            return f"weighting.on_all_zero {self.on_all_zero} needs single scores or sizes; take raise"
        if self.target == "global" and self.metric != "kl":
            return f"by {self.metric} the discrepancies to the global target follow from no sum; take kl"
        return None

    @property
    def largest_score(self) -> float:
        return 1.0 + max(self.b, 0.0)

    def score_alone(self, own: Contribution, totals: Totals) -> float:
        if own.discrepancy is None or not math.isfinite(own.discrepancy):
            return 0.0
        share = own.discrepancy / totals.discrepancy if totals.discrepancy > 0 else 0.0
        return max(own.examples / totals.examples - self.a * share + self.b, 0.0)

    def weigh(self, round: WeightingRound) -> Weighed:
        return Weighed(_weigh(self, round))


def weights(
    n: Sequence[float] | Vector,
    d: Sequence[float] | Vector,
    a: float = 0.5,
    b: float = 0.1,
    normalise: Normalise = "round",
    clip: bool = True,
    on_all_zero: OnAllZero = "sizes",
    *,
    present: Sequence[bool] | None = None,
) -> Vector:
    """``p_k = ReLU(n_k - a d_k + b) / sum``: 0 or more, sums to one.

    ``n`` are sizes (finite, 0 or more, not all 0), ``d`` raw discrepancies (0 or more). A d of ``inf``
    is given weight 0 whatever decides, and stays out of the normalising sum.

    * ``normalise="round"``: d is made to sum to one; n always is.
    * ``"none"``: d is taken as it is.
    * ``"all_clients"``: n and d hold every client of the run and are made to sum to one over all of them;
      ``present`` says whose updates arrived, the others get 0.

    ``clip=False`` leaves out the ReLU (weights may then be negative). When no score is above zero,
    ``on_all_zero`` decides: sizes, uniform, or WeightlessRound; that is raised, too, when nobody is left
    to give a weight to. Other bad input raises InvalidRequest.

    >>> weights([5, 3, 2], [0.2, 0.3, 0.5]).round(4).tolist()
    [0.625, 0.3125, 0.0625]
    """
    sizes, distances, here = _checked(n, d, a, b, present)
    size_shares = make_shares(sizes)
    scores = _scores(size_shares, _normalised(distances, normalise), a, b)
    return _from_scores(scores, size_shares, here & np.isfinite(distances), clip, on_all_zero)


def _checked(
    n: Sequence[float] | Vector,
    d: Sequence[float] | Vector,
    a: float,
    b: float,
    present: Sequence[bool] | None,
) -> tuple[Vector, Vector, NDArray[np.bool_]]:
    sizes, distances = np.array(n, dtype=np.float64), np.array(d, dtype=np.float64)
    here = np.ones(sizes.shape, dtype=bool) if present is None else np.array(present, dtype=bool)
    if sizes.ndim != 1 or sizes.shape != distances.shape or sizes.shape != here.shape:
        raise InvalidRequest(
            f"n, d and present have the shapes {sizes.shape}, {distances.shape} and {here.shape}",
            hint="Give one number a client in each.",
        )
    for name, values, bad in (("n", sizes, ~np.isfinite(sizes)), ("d", distances, np.isnan(distances))):
        wrong = np.flatnonzero(bad | (values < 0))
        if len(wrong):
            raise InvalidRequest(f"{name}[{wrong[0]}] is {values[wrong[0]]}, not a number of 0 or more")
    if not np.any(sizes[here] > 0):
        raise InvalidRequest("no client that is present has examples (all n are 0)")
    if not (math.isfinite(a) and math.isfinite(b) and a >= 0):
        raise InvalidRequest(f"a={a}, b={b}: both must be finite and a not negative")
    return sizes, distances, here


def _normalised(distances: Vector, normalise: Normalise) -> Vector:
    if normalise == "none":
        return distances
    finite = np.isfinite(distances)
    shares = np.full_like(distances, np.inf)
    shares[finite] = make_shares(distances[finite])
    return shares


def _scores(size_shares: Vector, distances: Vector, a: float, b: float) -> Vector:
    """``n_k - a d_k + b``; minus infinity where d_k is infinite, also for a = 0."""
    scores = np.full_like(distances, -np.inf)
    finite = np.isfinite(distances)
    with np.errstate(over="ignore"):  # a huge a d_k is a score of minus infinity
        scores[finite] = size_shares[finite] - a * distances[finite] + b
    return scores


def _from_scores(
    scores: Vector, size_shares: Vector, eligible: NDArray[np.bool_], clip: bool, on_all_zero: OnAllZero
) -> Vector:
    """``eligible``: who may be given a weight; present, and of a finite discrepancy."""
    usable = eligible & np.isfinite(scores) & ((scores > 0) | (not clip))
    kept = np.where(usable, scores, 0.0)
    largest = float(np.abs(kept).max(initial=0.0))
    if largest > 0 and math.fsum(kept / largest) > 0:
        return make_shares(kept) if clip else kept / math.fsum(kept)
    if on_all_zero == "raise":
        raise WeightlessRound(
            "no client's score n_k - a d_k + b is above zero",
            hint="Lower a, raise b, or set on_all_zero to sizes or uniform.",
        )
    instead = np.where(eligible, size_shares if on_all_zero == "sizes" else 1.0, 0.0)
    if not instead.any():
        raise WeightlessRound(
            "every client of the round that has examples holds a class whose target share is 0",
            hint="Give that class a share in the weighting's target.",
        )
    return make_shares(instead)


def _weigh(weighting: DiscoWeighting, round: WeightingRound) -> list[LedgerEntry]:
    size_weights = {row.index: n for row, n in zip(round.taken, round.size_shares.tolist(), strict=True)}
    pool = {row.index: row for row in round.taken}
    if weighting.normalise == "all_clients":
        pool = {row.index: row for row in round.everyone if _counts(row)} | pool
    rows = [pool[index] for index in sorted(pool)]
    arrived = np.array([row.index in size_weights for row in rows])
    size_shares = make_shares(sizes_of(rows))
    raw = np.array([row.discrepancy for row in rows], dtype=np.float64)
    shares = _normalised(raw, weighting.normalise)
    scores = _scores(size_shares, shares, weighting.a, weighting.b)
    try:
        given = _from_scores(scores, size_shares, arrived & np.isfinite(raw), True, weighting.on_all_zero)
    except WeightlessRound:
        given = np.zeros_like(scores)
    fell_back = not np.any(scores[arrived] > 0)
    return [
        replace(
            make_entry(row, size_weights[row.index], float(given[at])),
            size_share=float(size_shares[at]),
            discrepancy_share=float(shares[at]),
            score=float(scores[at]),
            reason=_explain(weighting.on_all_zero, float(scores[at]), fell_back, not math.isfinite(raw[at])),
        )
        for at, row in enumerate(rows)
        if arrived[at]
    ]


def _counts(row: Contribution) -> bool:
    return row.examples > 0 and row.discrepancy is not None


def _explain(on_all_zero: OnAllZero, score: float, fell_back: bool, infinite: bool) -> str | None:
    if fell_back and not infinite:
        instead = {
            "sizes": "sizes decide instead",
            "uniform": "all weights are equal instead",
            "raise": "so the round has no weight",
        }
        return f"no score in the round is above zero, {instead[on_all_zero]}"
    if infinite or score == -math.inf:
        return "a class it holds has target share 0"
    if score < 0:
        return "score below zero"
    return "score zero" if score == 0 else None
