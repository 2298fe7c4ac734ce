"""Which updates of a round stand out, by a stated rule; they are flagged, not left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Protocol

__all__ = ["FARTHEST", "LEAST_COSINE", "LEAST_UPDATES", "LONGEST", "RULE", "find_outliers"]

LEAST_UPDATES = 3
LONGEST = 3.0
LEAST_COSINE = -0.1
FARTHEST = 0.3
"""Below the median. Where labels are skewed, each client draws the model to its own classes: late in a run
most honest updates point against one another, and that alone makes none of them unusual.
"""
RULE = (
    f"Flagged is an update whose norm is more than {LONGEST:g} times the median of the round, or whose "
    f"cosine with the mean direction of the others is below {LEAST_COSINE:g} and more than {FARTHEST:g} "
    f"below the median of the round, in rounds of {LEAST_UPDATES} updates or more"
)


class Described(Protocol):
    """A row of the ledger."""

    @property
    def index(self) -> int: ...
    @property
    def norm(self) -> float | None: ...
    @property
    def cosine(self) -> float | None: ...


def find_outliers(rows: Sequence[Described]) -> dict[int, str]:
    """By client index, what is unusual about the update."""
    norms = {row.index: row.norm for row in rows if row.norm is not None}
    if len(norms) < LEAST_UPDATES:
        return {}
    longest = LONGEST * (usual := statistics.median(norms.values()))
    cosines = [row.cosine for row in rows if row.cosine is not None]
    least = min(LEAST_COSINE, statistics.median(cosines) - FARTHEST) if cosines else LEAST_COSINE
    found: dict[int, list[str]] = {}
    for row in rows:
        if row.norm is not None and row.norm > longest:
            found.setdefault(row.index, []).append(
                f"its norm {row.norm:.4g} is more than {LONGEST:g} times the round's median {usual:.4g}"
            )
        if row.cosine is not None and row.cosine < least:
            found.setdefault(row.index, []).append(f"it points against the others (cosine {row.cosine:.2f})")
    return {index: "; ".join(reasons) for index, reasons in found.items()}
