"""What is said about curves: pure functions of numbers, accuracies from 0 to 1."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "LAST",
    "WARM_UP",
    "Interval",
    "Spread",
    "after_warm_up",
    "best",
    "bootstrap",
    "client_variance",
    "group_means",
    "last_ten",
    "mean_and_deviation",
    "rounds_to",
]

LAST = 10
"""Rounds that the paper's partial-participation table averages over."""
WARM_UP = 20
"""Rounds that a gain over a whole run leaves out: both models are still far from where they end."""
BLOCK = 10
"""Rounds that are drawn together, at most: what is lucky in one round still is in the next."""
RESAMPLES = 4000


@dataclass(frozen=True)
class Spread:
    """A mean, its sample standard deviation (None for a single value) and over how many values."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Interval:
    """From the 2.5th to the 97.5th percentile of what resampling gave."""

    low: float
    high: float


def mean_and_deviation(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (divisor n - 1) of one value or more.

    >>> mean_and_deviation([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """
    if not values:
        raise ValueError("no values to average")
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def last_ten(curve: Sequence[float]) -> Spread:
    """Mean and deviation over the last ten rounds, or over all if there are fewer."""
    return mean_and_deviation(curve[-LAST:])


def best(curve: Sequence[float]) -> float:
    """The highest value of any round: what the released program prints."""
    return max(curve)


def rounds_to(curve: Sequence[float], target: float) -> int | None:
    """The first round that reaches ``target``, counted from 0 as the paper does; None if none does.

    >>> rounds_to([0.2, 0.56, 0.5], 0.55)
    1
    """
    return next((number for number, value in enumerate(curve) if value >= target), None)


def client_variance(accuracies: Sequence[float]) -> float:
    """Population variance of the clients' accuracies in percentage points squared.

    >>> client_variance([0.5, 0.7])
    100.0
    """
    return round(statistics.pvariance([100 * accuracy for accuracy in accuracies]), 9)


def group_means(per_category: Sequence[float], sizes: Sequence[int] = (4, 3, 3)) -> tuple[float, ...]:
    """Means over consecutive groups of categories: head, middle and tail of the paper's ten.

    >>> group_means([0.8, 0.6, 0.4], sizes=(2, 1))
    (0.7, 0.4)
    """
    if sum(sizes) != len(per_category):
        raise ValueError(f"groups of {tuple(sizes)} do not make {len(per_category)} categories")
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        statistics.fmean(per_category[start : start + size])
        for start, size in zip(starts, sizes, strict=True)
    )


def after_warm_up(curve: Sequence[float]) -> Sequence[float]:
    """Without the first ``WARM_UP`` rounds, if at least ``LAST`` remain; otherwise all of them."""
    return curve[WARM_UP:] if len(curve) >= WARM_UP + LAST else curve


def bootstrap(by_seed: Sequence[Sequence[float]]) -> Interval:
    """95 % interval of the mean over seeds of the mean over rounds: both are resampled.

    Seeds are drawn with replacement, and of each the rounds in circular blocks of ``BLOCK``, or of a quarter
    of the rounds if that is less (Politis and Romano, 1992), since neighbouring rounds are alike. Of a single
    seed only the rounds can be resampled. The draws are always the same.

    >>> bootstrap([[1.0, 1.0, 1.0], [1.0, 1.0]])
    Interval(low=1.0, high=1.0)
    """
    if not by_seed or not all(by_seed):
        raise ValueError("no rounds to resample")
    random = np.random.RandomState(0)
    chosen = random.randint(len(by_seed), size=(RESAMPLES, len(by_seed)))
    means = np.empty(chosen.shape)
    for seed, rounds in enumerate(by_seed):
        places = chosen == seed
        means[places] = _block_means(np.asarray(rounds, dtype=np.float64), int(places.sum()), random)
    low, high = np.percentile(means.mean(axis=1), [2.5, 97.5])
    return Interval(round(float(low), 9), round(float(high), 9))


def _block_means(rounds: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    """Means of ``count`` resamples, shape (count,), each of as many blocks as cover the rounds."""
    length = max(1, min(BLOCK, len(rounds) // 4))
    around = np.concatenate([rounds, rounds[: length - 1]])
    blocks = np.lib.stride_tricks.sliding_window_view(around, length).mean(axis=1)
    drawn = random.randint(len(rounds), size=(count, -(-len(rounds) // length)))
    return np.asarray(blocks[drawn].mean(axis=1))
