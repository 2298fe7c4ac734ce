"""What is said about curves: pure functions of numbers, accuracies from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "LAST",
    "Spread",
    "best",
    "client_variance",
    "group_means",
    "last_ten",
    "mean_and_deviation",
    "paired_gain",
    "rounds_to",
]

LAST = 10
"""Rounds that the paper's partial-participation table averages over."""


@dataclass(frozen=True)
class Spread:
    """A mean, its sample standard deviation (None for a single value) and over how many values."""

    mean: float
    deviation: float | None
    count: int


def mean_and_deviation(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (divisor n - 1) of one value or more.

    >>> mean_and_deviation([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """
    if not values:
        raise ValueError("no values to average")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Spread(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def last_ten(curve: Sequence[float]) -> Spread:
    """Mean and deviation over the last ten rounds, or over all if there are fewer."""
    return mean_and_deviation(curve[-LAST:])


def best(curve: Sequence[float]) -> float:
    """The highest value of any round: what the released program prints."""
    return max(curve)


def rounds_to(curve: Sequence[float], target: float) -> int | None:
    """The first round (from 1) that reaches ``target``; None if none does.

    >>> rounds_to([0.2, 0.56, 0.5], 0.55)
    2
    """
    return next((number for number, value in enumerate(curve, start=1) if value >= target), None)


def client_variance(accuracies: Sequence[float]) -> float:
    """Population variance of the clients' accuracies in percentage points squared.

    >>> client_variance([0.5, 0.7])
    100.0
    """
    points = [100 * accuracy for accuracy in accuracies]
    mean = math.fsum(points) / len(points)
    return round(math.fsum((value - mean) ** 2 for value in points) / len(points), 9)


def group_means(per_category: Sequence[float], sizes: Sequence[int] = (4, 3, 3)) -> tuple[float, ...]:
    """Means over consecutive groups of categories: head, middle and tail of the paper's ten.

    >>> group_means([0.8, 0.6, 0.4], sizes=(2, 1))
    (0.7, 0.4)
    """
    if sum(sizes) != len(per_category):
        raise ValueError(f"groups of {tuple(sizes)} do not make {len(per_category)} categories")
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        math.fsum(per_category[start : start + size]) / size
        for start, size in zip(starts, sizes, strict=True)
    )


def paired_gain(without: dict[int, float], with_it: dict[int, float]) -> Spread | None:
    """Difference by seed, over the seeds that both have; None if they share none.

    >>> paired_gain({0: 0.5, 1: 0.25}, {0: 0.75, 2: 0.9})
    Spread(mean=0.25, deviation=None, count=1)
    """
    shared = sorted(without.keys() & with_it.keys())
    return mean_and_deviation([with_it[seed] - without[seed] for seed in shared]) if shared else None
