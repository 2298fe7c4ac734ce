"""How many label counts fit a disclosed discrepancy: what it leaves open to whoever reads it.

The search is bounded, so it finds all of them for small data sets and otherwise a lower bound: it moves the
examples of some classes among these and leaves the other classes as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.config import AnyMetric
from shared.discrepancy import Target, discrepancy, shares

__all__ = ["Fits", "count_fits", "partitions"]

Counts = NDArray[np.int64]

LIMIT = 400_000
_ROUNDING = 1e-9  # what the fast sum may differ from the exact one, relatively


@dataclass(frozen=True)
class Fits:
    """``number`` of label counts, in no order where the target is uniform; ``all``: there are no more."""

    number: int
    all: bool


def partitions(examples: int, parts: int, *, ordered: bool, limit: int = LIMIT) -> Counts | None:
    """All ways (rows) to deal ``examples`` to ``parts`` classes; None if there are more than ``limit``.

    Not ``ordered``: rows ascend, so that each multiset comes once.
    """
    if parts == 1:
        return np.array([[examples]])
    rows, rest = np.zeros((1, 0), dtype=np.int64), np.array([examples])
    for left in range(parts, 1, -1):
        first = np.zeros(len(rest), dtype=np.int64) if ordered or not rows.shape[1] else rows[:, -1]
        number = np.maximum((rest if ordered else rest // left) - first + 1, 0)
        if number.sum() > limit:
            return None
        source = np.repeat(np.arange(len(rest)), number)
        start = np.repeat(np.cumsum(number) - number, number)
        value = first[source] + np.arange(len(source)) - start
        rows = np.column_stack([rows[source], value])
        rest = rest[source] - value
    return np.column_stack([rows, rest])


def count_fits(
    counts: Sequence[int], target: Target, metric: AnyMetric, told: float, half_width: float = 0.0
) -> Fits:
    """Label counts of the same size whose discrepancy is within ``half_width`` of what was told.

    With ``half_width`` 0: those that give the very same double.
    """
    best = 0
    for chosen in _families(len(counts)):
        moved = sum(counts[place] for place in chosen)
        rows = partitions(moved, len(chosen), ordered=not isinstance(target, str))
        if rows is None:
            continue
        found = _number_that_fit(rows, chosen, counts, target, metric, told, half_width)
        if len(chosen) == len(counts):
            return Fits(found, all=True)
        best = max(best, found)
        if found > 1 and len(chosen) > 2:
            break
    return Fits(max(best, 1), all=False)


def _families(classes: int) -> Iterator[list[int]]:
    """Sets of classes to move examples among, the largest first."""
    for number in range(classes, 1, -1):
        yield list(range(number))
        if number < classes:
            yield list(range(classes - number, classes))


def _number_that_fit(
    rows: Counts,
    chosen: list[int],
    counts: Sequence[int],
    target: Target,
    metric: AnyMetric,
    told: float,
    half_width: float,
) -> int:
    whole = np.tile(np.asarray(counts, dtype=np.int64), (len(rows), 1))
    whole[:, chosen] = rows
    distance = np.abs(_distances(whole, shares(target, len(counts)), metric) - told)
    if not math.isfinite(told):
        return int(np.isinf(_distances(whole, shares(target, len(counts)), metric)).sum())
    if half_width:
        return int((distance <= half_width).sum())
    near = whole[distance <= _ROUNDING * max(1.0, told)]
    return sum(discrepancy(row, target, metric) == told for row in near)


def _distances(counts: Counts, target: Sequence[float], metric: AnyMetric) -> NDArray[np.float64]:
    """The discrepancy of each row, but for rounding."""
    p = counts / counts.sum(axis=1, keepdims=True)
    q = np.asarray(target)
    if metric == "kl":
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(axis=1))
    if metric == "l1":
        return np.asarray(np.abs(p - q).sum(axis=1))
    if metric == "l2":
        return np.asarray(np.linalg.norm(p - q, axis=1))
    return np.asarray(1 - p @ q / (np.linalg.norm(p, axis=1) * np.linalg.norm(q)))
