"""Aggregation weights: one file each, and the file's name is the registry.

``kind: disco`` in a run's configuration is ``shared/weightings/disco.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from shared.weightings.base import Contribution, LedgerEntry, Weighting, WeightingRound

__all__ = ["AnyWeighting", "Contribution", "LedgerEntry", "available", "find_refusal", "kinds", "ledger"]


def available() -> tuple[str, ...]:
    """Names of the weightings, in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "base"))


def kinds() -> tuple[type[Weighting], ...]:
    """The classes of the weightings, by name."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in available()]
    return tuple(
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Weighting) and found.__module__ == module.__name__
    )


if TYPE_CHECKING:
    AnyWeighting = Weighting
else:  # one of them, told apart by its kind
    AnyWeighting = Annotated[Union[kinds()], Field(discriminator="kind")]  # noqa: UP007 - of a tuple


def ledger(
    weighting: Weighting, arrived: Sequence[Contribution], all_clients: Sequence[Contribution]
) -> tuple[LedgerEntry, ...]:
    """The round's weights with their reasons, one row for each update that arrived, by index.

    The one function that coordinator and simulation call. ``all_clients`` are all trainers enrolled. When
    nobody can be given a weight, all weights are 0.

    >>> from shared.weightings.sizes import SizesWeighting
    >>> arrived = [Contribution(0, 30, None), Contribution(1, 10, None)]
    >>> [row.weight for row in ledger(SizesWeighting(), arrived, [])]
    [0.75, 0.25]
    """
    rows = sorted(arrived, key=lambda row: row.index)
    taken = [row for row in rows if find_refusal(weighting, row) is None]
    entries = weighting.weigh(WeightingRound(taken, all_clients)).rows if taken else []
    by_index = {entry.index: entry for entry in entries}
    return tuple(by_index.get(row.index) or _exclude(weighting, row) for row in rows)


def find_refusal(weighting: Weighting, row: Contribution) -> str | None:
    """Why a client cannot take part in the weighting; None if it can."""
    if row.examples == 0:
        return "no examples"
    if weighting.needs_discrepancy and row.discrepancy is None:
        return "no discrepancy submitted"
    return None


def _exclude(weighting: Weighting, row: Contribution) -> LedgerEntry:
    reason = find_refusal(weighting, row)
    return LedgerEntry(row.index, row.examples, False, reason, None, row.discrepancy, None, None, 0.0, 0.0)
