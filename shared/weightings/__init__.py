"""Aggregation weights: one file each, and the file's name is the registry.

``kind: disco`` in a run's configuration is ``shared/weightings/disco.py``; ``package.module:attribute`` is
somebody's own, which is imported where rounds are aggregated, and nowhere else.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from shared.problems import InvalidConfiguration
from shared.weightings.base import (
    Contribution,
    LedgerEntry,
    Need,
    Weighed,
    Weighting,
    WeightingRound,
)
from shared.weightings.own import OwnWeighting

__all__ = [
    "AnyWeighting",
    "Contribution",
    "LedgerEntry",
    "available",
    "find_refusal",
    "find_taken",
    "kinds",
    "ledger",
    "load_weighting",
    "weigh",
]


LARGEST_LOSS = 1e100
"""Beyond any loss of a model in float32; sums and squares of losses up to it are finite."""
_LOSSES = {Need.START_LOSS, Need.END_LOSS}


def available() -> tuple[str, ...]:
    """Names of the built-in weightings, in alphabetical order."""
    names = (found.name for found in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if name not in ("base", "own")))


def kinds() -> tuple[type[Weighting], ...]:
    """The classes of the built-in weightings, by name."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in available()]
    return tuple(
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Weighting) and found.__module__ == module.__name__
    )


def _kind(value: Any) -> str:
    kind = str(value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None))
    return "own" if ":" in kind else kind


if TYPE_CHECKING:
    AnyWeighting = Weighting
else:  # one of them, told apart by its kind
    _TAGGED = [Annotated[kind, Tag(name)] for name, kind in zip(available(), kinds(), strict=True)]
    AnyWeighting = Annotated[
        Union[*_TAGGED, Annotated[OwnWeighting, Tag("own")]],
        Discriminator(
            _kind,
            custom_error_type="kind",
            custom_error_message=f"kind is none of {', '.join(available())}, or package.module:attribute",
        ),
    ]


def load_weighting(weighting: Weighting) -> Weighting:
    """The weighting with its rule: somebody's own is imported here.

    Raises:
        InvalidConfiguration: it cannot be imported, is none, or its options are not right.
    """
    return weighting.load() if isinstance(weighting, OwnWeighting) else weighting


def ledger(
    weighting: Weighting, arrived: Sequence[Contribution], all_clients: Sequence[Contribution]
) -> tuple[LedgerEntry, ...]:
    """The weights with their reasons, one row for each update that arrived, by index.

    Of a weighting that needs neither updates nor earlier rounds. ``all_clients`` are all trainers enrolled.
    When nobody can be given a weight, all weights are 0.

    >>> from shared.weightings.sizes import SizesWeighting
    >>> arrived = [Contribution(0, 30), Contribution(1, 10)]
    >>> [row.weight for row in ledger(SizesWeighting(), arrived, [])]
    [0.75, 0.25]
    """
    round = WeightingRound(find_taken(weighting, arrived), all_clients)
    return tuple(weigh(weighting, arrived, round).rows)


def weigh(weighting: Weighting, arrived: Sequence[Contribution], round: WeightingRound) -> Weighed:
    """The round's weights: a row for each update that arrived, by index, also for those not taken.

    ``round.taken`` are those of :func:`find_taken`. The one function that coordinator and simulation call.

    Raises InvalidConfiguration for a weight below 0 or none that is a number (it would turn an update round),
    and for what is no row for each of ``round.taken``.
    """
    weighed = weighting.weigh(round) if round.taken else Weighed([], memory=round.memory)
    _check_rows(weighed, round)
    _check_weights(weighed.rows)
    by_index = {entry.index: entry for entry in weighed.rows}
    rows = sorted(arrived, key=lambda row: row.index)
    entries = [by_index.get(row.index) or _exclude(weighting, row) for row in rows]
    return Weighed(entries, weighed.memory, weighed.adjustment)


def _check_rows(weighed: Weighed, round: WeightingRound) -> None:
    """Somebody's own may give anything."""
    taken = [row.index for row in round.taken]
    given: Any = sorted(row.index for row in weighed.rows) if isinstance(weighed, Weighed) else weighed
    if given != taken:
        raise InvalidConfiguration(
            f"the weighting gives {given!r:.200} and no row for each of the clients {taken!r:.200}",
            hint="Let `weigh` return Weighed(make_rows(round, weights, scores)).",
        )


def _check_weights(rows: Sequence[LedgerEntry]) -> None:
    for row in rows:
        if not 0 <= row.weight < math.inf:
            raise InvalidConfiguration(
                f"the weighting gives client {row.index} the weight {row.weight:g}",
                hint="A weight is 0 or more: look at the weighting, and at what the round's clients declare.",
            )


def find_taken(weighting: Weighting, arrived: Sequence[Contribution]) -> list[Contribution]:
    """The clients that can take part in the weighting, by index."""
    taken = [row for row in arrived if find_refusal(weighting, row) is None]
    return sorted(taken, key=lambda row: row.index)


def find_refusal(weighting: Weighting, row: Contribution) -> str | None:
    """Why a client cannot take part in the weighting; None if it can."""
    if row.examples == 0:
        return "no examples"
    known = {
        Need.NUMBER: (row.discrepancy, "no discrepancy submitted"),
        Need.COUNTS: (row.counts, "its label counts are not known"),
        Need.START_LOSS: (row.start_loss, "its loss of the model that it received is missing or not finite"),
        Need.END_LOSS: (row.end_loss, "its loss of the model that it sent is missing or not finite"),
    }
    for need, (value, why) in known.items():
        if need in weighting.needs and value is None:
            return why
        if need in _LOSSES & weighting.needs and isinstance(value, float) and abs(value) > LARGEST_LOSS:
            return f"it declares a loss of {value:g}, and none above {LARGEST_LOSS:g} is believed"
    return weighting.find_refusal(row)


def _exclude(weighting: Weighting, row: Contribution) -> LedgerEntry:
    reason = find_refusal(weighting, row)
    return LedgerEntry(row.index, row.examples, False, reason, None, row.discrepancy, None, None, 0.0, 0.0)
