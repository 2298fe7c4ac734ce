"""Aggregation weights: sizes, uniform, or FedDisco's discrepancy-aware ones.

FedDisco (Ye et al., ICML 2023, eq. 6): ``p_k = ReLU(n_k - a d_k + b) / sum``. The paper does not say
that ``d_k`` is normalised to sum to one over the round; the released code does it, and only so are
the published a and b usable. Knows no algorithm: any algorithm takes any of these weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.config import DiscoWeighting, SizesWeighting, UniformWeighting
from shared.problems import InvalidRequest, WeightlessRound

__all__ = ["Contribution", "LedgerEntry", "ledger", "weights"]

Vector = NDArray[np.float64]
Normalise = Literal["round", "none", "all_clients"]
OnAllZero = Literal["sizes", "uniform", "raise"]


@dataclass(frozen=True)
class Contribution:
    """What weighting knows of a client; ``discrepancy`` is the raw d_k (may be ``inf``; None: not given)."""

    index: int
    examples: int
    discrepancy: float | None


@dataclass(frozen=True)
class LedgerEntry:
    """Why one client got its weight: a row of the round's ledger.

    ``size_share`` is n_k and ``discrepancy_share`` the d_k as they enter ``score`` = n_k - a d_k + b (None
    for weightings without a score); ``weight`` is p_k; ``size_weight`` is what plain sizes would have
    given. ``included`` is False for a client that could not take part in the weighting at all;
    ``reason`` is a sentence whenever the weight is 0.
    """

    index: int
    examples: int
    included: bool
    reason: str | None
    size_share: float | None
    discrepancy: float | None
    discrepancy_share: float | None
    score: float | None
    weight: float
    size_weight: float


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
    size_shares = _shares(sizes)
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


def _shares(values: Vector) -> Vector:
    """``values / sum(values)``, exactly the same bits in any order (``fsum`` rounds once)."""
    largest = float(values.max(initial=0.0))
    if largest == 0:
        return np.zeros_like(values)
    # A power of two changes no digit and keeps the sum of huge numbers finite.
    scaled = np.ldexp(values, -math.frexp(largest)[1])
    return scaled / math.fsum(scaled)


def _normalised(distances: Vector, normalise: Normalise) -> Vector:
    if normalise == "none":
        return distances
    finite = np.isfinite(distances)
    shares = np.full_like(distances, np.inf)
    shares[finite] = _shares(distances[finite])
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
        return _shares(kept) if clip else kept / math.fsum(kept)
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
    return _shares(instead)


def ledger(
    weighting: SizesWeighting | UniformWeighting | DiscoWeighting,
    arrived: Sequence[Contribution],
    all_clients: Sequence[Contribution],
) -> tuple[LedgerEntry, ...]:
    """The round's weights with their reasons, one row for each update that arrived, by index.

    The one function that coordinator and simulation call. ``all_clients`` (every trainer enrolled)
    matters to ``normalise="all_clients"`` alone. When nobody can be given a weight, all weights are 0.

    >>> arrived = [Contribution(0, 30, None), Contribution(1, 10, None)]
    >>> [row.weight for row in ledger(SizesWeighting(), arrived, [])]
    [0.75, 0.25]
    """
    needs_discrepancy = weighting.needs_discrepancy
    rows = sorted(arrived, key=lambda row: row.index)
    taken = [row for row in rows if _refusal(row, needs_discrepancy) is None]
    size_weights = dict(zip((r.index for r in taken), _shares(_sizes(taken)).tolist(), strict=True))
    if isinstance(weighting, DiscoWeighting):
        entries = _disco(weighting, taken, all_clients, size_weights)
    else:
        uniform = isinstance(weighting, UniformWeighting)
        given = _shares(np.ones(len(taken))).tolist() if uniform else list(size_weights.values())
        entries = [
            _entry(row, size_weights[row.index], weight) for row, weight in zip(taken, given, strict=True)
        ]
    by_index = {entry.index: entry for entry in entries}
    return tuple(by_index.get(row.index) or _excluded(row, needs_discrepancy) for row in rows)


def _refusal(row: Contribution, needs_discrepancy: bool) -> str | None:
    if row.examples == 0:
        return "no examples"
    if needs_discrepancy and row.discrepancy is None:
        return "no discrepancy submitted"
    return None


def _excluded(row: Contribution, needs_discrepancy: bool) -> LedgerEntry:
    reason = _refusal(row, needs_discrepancy)
    return LedgerEntry(row.index, row.examples, False, reason, None, row.discrepancy, None, None, 0.0, 0.0)


def _entry(row: Contribution, size_share: float, weight: float) -> LedgerEntry:
    return LedgerEntry(
        row.index, row.examples, True, None, size_share, row.discrepancy, None, None, weight, size_share
    )


def _sizes(rows: Sequence[Contribution]) -> Vector:
    return np.array([row.examples for row in rows], dtype=np.float64)


def _disco(
    weighting: DiscoWeighting,
    taken: Sequence[Contribution],
    all_clients: Sequence[Contribution],
    size_weights: dict[int, float],
) -> list[LedgerEntry]:
    if not taken:
        return []
    pool = {row.index: row for row in taken}
    if weighting.normalise == "all_clients":
        pool = {row.index: row for row in all_clients if _refusal(row, True) is None} | pool
    rows = [pool[index] for index in sorted(pool)]
    arrived = np.array([row.index in size_weights for row in rows])
    size_shares = _shares(_sizes(rows))
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
            _entry(row, size_weights[row.index], float(given[at])),
            size_share=float(size_shares[at]),
            discrepancy_share=float(shares[at]),
            score=float(scores[at]),
            reason=_disco_reason(
                weighting.on_all_zero, float(scores[at]), fell_back, not math.isfinite(raw[at])
            ),
        )
        for at, row in enumerate(rows)
        if arrived[at]
    ]


def _disco_reason(on_all_zero: OnAllZero, score: float, fell_back: bool, infinite: bool) -> str | None:
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
