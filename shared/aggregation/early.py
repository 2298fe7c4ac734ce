"""What a round's end will sum if every participant's update arrives, as far as that is known beforehand.

Weights that go by sizes and discrepancies are known when the round opens. Whoever adds updates as they come
has most of the work done at the round's end; where it turns out otherwise, the end sums anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import wire
from shared.aggregation.round_end import Arrived, Start, weigh_updates
from shared.algorithms.base import Algorithm, UpdateInfo
from shared.calibrated import find_algorithm
from shared.config import RunConfig
from shared.rules import MeanRule
from shared.schemas import TensorKind, TensorSpec
from shared.weightings import Contribution, load_weighting
from shared.weightings.base import Memory, Need

__all__ = ["ExpectedSum", "expect_sums"]

KNOWN_BEFOREHAND = {Need.NUMBER, Need.COUNTS}


@dataclass(frozen=True)
class ExpectedSum:
    """Of the tensors ``specs`` of a group, with these coefficients by client index, none of them 0."""

    group: str
    specs: tuple[TensorSpec, ...]
    coefficients: Mapping[int, float]


def expect_sums(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    memory: Memory,
    participants: Sequence[Contribution],
    all_clients: Sequence[Contribution],
    *,
    number: int,
) -> list[ExpectedSum]:
    """For round ``number``; empty if what arrives decides more than who is there.

    ``memory`` is the weighting's, ``participants`` all who may still send an update, in index order.
    """
    algorithm = find_algorithm(config, number)
    if not _is_known_beforehand(config, algorithm, number):
        return []
    weights = _expect_weights(config, manifest, memory, participants, all_clients, number)
    if not weights:
        return []
    uniform = {row.index: 1 / len(all_clients) for row in participants}
    expected = [
        ExpectedSum(
            asked.group,
            tuple(algorithm.specs_of(asked.group, manifest)),
            weights if asked.by == "weight" else uniform,
        )
        for asked in algorithm.sums
    ]
    buffers = tuple(spec for spec in manifest if spec.kind is TensorKind.BUFFER)
    if buffers and config.buffers == "average":
        expected.append(ExpectedSum(wire.MODEL, buffers, weights))
    return expected


def _is_known_beforehand(config: RunConfig, algorithm: Algorithm[Any], number: int) -> bool:
    """Not where steps, losses or the updates themselves have a say in what they count, or come packed; nor
    where it is travelling models that are averaged.
    """
    return (
        config.secure is None
        and config.average_every == 1
        and config.compression is None
        and isinstance(config.aggregation, MeanRule)
        and load_weighting(config.weighting).needs <= KNOWN_BEFOREHAND
        and type(algorithm).norm is Algorithm.norm
        and algorithm.trains(number)
    )


def _expect_weights(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    memory: Memory,
    participants: Sequence[Contribution],
    all_clients: Sequence[Contribution],
    number: int,
) -> dict[int, float]:
    expected = [Arrived(UpdateInfo(row.index, row.examples, 0.0, 0), Path(), row) for row in participants]
    weighed = weigh_updates(
        config,
        config.weighting,
        [spec for spec in manifest if spec.kind is TensorKind.PARAMETER],
        Start(Path(), memory=memory),
        expected,
        all_clients,
        number=number,
        proxy=None,
    )
    return {row.index: row.weight for row in weighed.rows if row.included and row.weight}
