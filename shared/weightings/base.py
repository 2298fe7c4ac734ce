"""What a weighting is: its options, what it has to know, and the rule that makes weights of it.

A weighting is part of a run's configuration: a frozen model whose fields are its options. It remembers
nothing, and knows no algorithm: any algorithm takes any weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shared.discrepancy import Metric
from shared.frozen import Frozen

__all__ = [
    "Contribution",
    "Discrepancy",
    "LedgerEntry",
    "Need",
    "Target",
    "Vector",
    "Weighed",
    "Weighting",
    "WeightingRound",
    "make_entry",
    "make_shares",
    "sizes_of",
]

Vector = NDArray[np.float64]
Target = Literal["uniform"] | tuple[Annotated[float, Field(ge=0)], ...]


class Need(StrEnum):
    """What a weighting has to know beside the clients' sizes, from the least to the most."""

    NUMBER = "one number of each client, its discrepancy"


class Discrepancy(NamedTuple):
    """The number that clients are asked for, once."""

    metric: Metric
    target: Target


@dataclass(frozen=True)
class Contribution:
    """What weighting knows of a client; ``discrepancy`` is the raw d_k (may be ``inf``; None: not given)."""

    index: int
    examples: int
    discrepancy: float | None


@dataclass(frozen=True)
class LedgerEntry:
    """Why one client got its weight: a row of the round's ledger.

    ``size_share`` is n_k and ``discrepancy_share`` the d_k as they enter ``score`` (None for weightings
    without a score); ``weight`` is p_k; ``size_weight`` is what plain sizes would have
    given, ``uncapped_weight`` what the weighting gave before the run's cap (None: no cap).
    ``included`` is False for a client that could not take part in the weighting at all;
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
    uncapped_weight: float | None = None


@dataclass(frozen=True)
class WeightingRound:
    """What a weighting may see of a round.

    ``taken`` are the clients whose updates arrived and that can take part, at least one, by index;
    ``everyone`` are all trainers enrolled.
    """

    taken: Sequence[Contribution]
    everyone: Sequence[Contribution]

    @property
    def size_shares(self) -> Vector:
        """n_k of those taken; they sum to one."""
        return make_shares(sizes_of(self.taken))


@dataclass(frozen=True)
class Weighed:
    """What came of a round: one row for each client taken, in the same order."""

    rows: Sequence[LedgerEntry]


class Weighting(Frozen):
    """Base of all weightings; a subclass has a ``kind`` of its own, which is the name of its file."""

    citation: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()

    kind: str

    @property
    def discrepancy(self) -> Discrepancy | None:
        """What clients are asked for; None: nothing (least disclosure)."""
        return None

    @property
    def needs_discrepancy(self) -> bool:
        return self.discrepancy is not None

    def weigh(self, round: WeightingRound) -> Weighed:
        """The weights of those taken, 0 or more; they sum to one, or all are 0 if nobody can have one."""
        raise NotImplementedError


def make_shares(values: Vector) -> Vector:
    """``values / sum(values)``, exactly the same bits in any order (``fsum`` rounds once)."""
    largest = float(values.max(initial=0.0))
    if largest == 0:
        return np.zeros_like(values)
    # A power of two changes no digit and keeps the sum of huge numbers finite.
    scaled = np.ldexp(values, -math.frexp(largest)[1])
    return scaled / math.fsum(scaled)


def sizes_of(rows: Sequence[Contribution]) -> Vector:
    """The numbers of examples."""
    return np.array([row.examples for row in rows], dtype=np.float64)


def make_entry(row: Contribution, size_share: float, weight: float) -> LedgerEntry:
    """The ledger's row of a client that is taken, without discrepancy share, score and reason."""
    return LedgerEntry(
        row.index, row.examples, True, None, size_share, row.discrepancy, None, None, weight, size_share
    )
