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
"""Rows of at most ten classes; of more classes as many fewer, since the time goes by both."""
BLOCK = 500_000
"""Label counts that are measured at once: rows times classes."""
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
    if limit <= LIMIT and not ordered and min(examples, parts) > 54:  # 55 alone are 451,276 sums
        return None
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
    best, limit = 0, min(LIMIT, LIMIT * 10 // len(counts))
    for chosen in _families(len(counts)):
        moved = sum(counts[place] for place in chosen)
        if not moved:
            continue
        rows = partitions(moved, len(chosen), ordered=not isinstance(target, str), limit=limit)
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
    """Of ``rows``, which move examples among the classes ``chosen``."""
    here = _Moved(np.asarray(counts, dtype=np.int64), chosen, np.array(shares(target, len(counts))))
    found, height = 0, max(1, BLOCK // len(chosen))
    for begin in range(0, len(rows), height):
        block = rows[begin : begin + height]
        distances = here.measure(block, metric)
        if not math.isfinite(told):
            found += int(np.isinf(distances).sum())
            continue
        distance = np.abs(distances - told)
        if half_width:
            found += int((distance <= half_width).sum())
        else:
            near = block[distance <= _ROUNDING * max(1.0, told)]
            found += sum(discrepancy(here.complete(row), target, metric) == told for row in near)
    return found


@dataclass(frozen=True)
class _Moved:
    """Label counts of which those of the classes ``chosen`` change; what the others add is summed once."""

    counts: Counts
    chosen: list[int]
    target: NDArray[np.float64]

    def complete(self, row: Counts) -> Counts:
        whole = self.counts.copy()
        whole[self.chosen] = row
        return whole

    def measure(self, rows: Counts, metric: AnyMetric) -> NDArray[np.float64]:
        """The discrepancy of each row, but for rounding."""
        others = np.delete(np.arange(len(self.counts)), self.chosen)
        examples = self.counts.sum()
        p, rest = rows / examples, self.counts[others] / examples
        q, beside = self.target[self.chosen], self.target[others]
        if metric == "kl":
            return _divergences(p, q) + _divergences(rest, beside)
        if metric == "l1":
            return np.asarray(np.abs(p - q).sum(axis=1) + np.abs(rest - beside).sum())
        if metric == "l2":
            return np.asarray(np.sqrt(((p - q) ** 2).sum(axis=1) + ((rest - beside) ** 2).sum()))
        lengths = np.sqrt((p**2).sum(axis=1) + (rest**2).sum()) * np.linalg.norm(self.target)
        return np.asarray(1 - (p @ q + rest @ beside) / lengths)


def _divergences(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(axis=-1))
