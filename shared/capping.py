"""A cap on aggregation weights: nobody weighs more, whatever size it declares; the rest is rescaled.

Water-filling: of all weights that sum to one and are at most ``largest``, these keep the ratios of the
clients below the cap. The order of the clients does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shared.weightings.base import LedgerEntry

__all__ = ["cap_ledger", "cap_weights", "is_feasible"]

_ROUNDING = 1e-12


def is_feasible(clients: int, largest: float) -> bool:
    """Whether so many weights can be at most ``largest`` and sum to one."""
    return clients * largest >= 1 - _ROUNDING


def cap_weights(weights: Sequence[float], largest: float) -> list[float]:
    """The weights, at most ``largest`` each; those of 0 stay 0. Equal ones where no others are possible.

    ``weights`` are 0 or more and sum to one; if all are 0, so is the result.

    >>> cap_weights([0.5, 0.25, 0.25], 0.4)
    [0.4, 0.3, 0.3]
    >>> cap_weights([0.9, 0.1, 0.0], 0.4)
    [0.5, 0.5, 0.0]
    """
    positive = sorted((weight for weight in weights if weight > 0), reverse=True)
    if not positive or positive[0] <= largest:
        return list(weights)
    if len(positive) * largest <= 1 + _ROUNDING:
        return [1 / len(positive) if weight > 0 else 0.0 for weight in weights]
    factor = _factor(positive, largest)
    return [min(weight * factor, largest) for weight in weights]


def _factor(descending: Sequence[float], largest: float) -> float:
    """By what those below the cap are multiplied: the first at which all of them stay below it."""
    for capped, weight in enumerate(descending):
        factor = (1 - capped * largest) / math.fsum(descending[capped:])
        if weight * factor <= largest:
            return factor
    raise AssertionError("a feasible cap leaves somebody below it")


def cap_ledger(rows: Sequence[LedgerEntry], largest: float | None) -> tuple[LedgerEntry, ...]:
    """The ledger with capped weights, and beside them those without the cap; None: no cap."""
    if largest is None:
        return tuple(rows)
    capped = cap_weights([row.weight for row in rows], largest)
    return tuple(
        replace(row, weight=weight, uncapped_weight=row.weight)
        for row, weight in zip(rows, capped, strict=True)
    )
