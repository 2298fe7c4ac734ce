"""How many batches a round of local training has, and in which order the examples come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from shared.seeds import derive, torch_generator

if TYPE_CHECKING:
    from torch import Tensor

    from shared.config import LocalTraining

__all__ = ["batches", "epochs_of", "planned_steps", "steps_per_epoch"]


def steps_per_epoch(examples: int, batch_size: int, drop_last: bool) -> int:
    """Batches of an epoch; an incomplete last one is dropped unless it is the only one.

    >>> steps_per_epoch(130, 64, True), steps_per_epoch(130, 64, False), steps_per_epoch(10, 64, True)
    (2, 3, 1)
    """
    whole, rest = divmod(examples, batch_size)
    return whole + (1 if rest and (whole == 0 or not drop_last) else 0)


def planned_steps(local: LocalTraining, examples: int, seed: int, round: int, index: int) -> int:
    """Optimizer steps of one round of a client with so many examples; none without examples.

    ``seed`` (the run's), ``round`` and ``index`` draw them, uniformly, where ``local`` gives a range.
    """
    if examples == 0:
        return 0
    if local.steps_range is not None:
        lowest, highest = local.steps_range
        return lowest + derive(seed, "steps", round, index) % (highest - lowest + 1)
    if local.steps is not None:
        return local.steps
    return (local.epochs or 0) * steps_per_epoch(examples, local.batch_size, local.drop_last)


def epochs_of(steps: int, local: LocalTraining, examples: int) -> int:
    """Epochs that so many steps take, begun ones counted whole."""
    return -(-steps // max(1, steps_per_epoch(examples, local.batch_size, local.drop_last)))


def batches(
    local: LocalTraining, examples: int, seed: int, round: int, index: int
) -> Iterator[tuple[int, Tensor]]:
    """For each planned step the epoch (from 1) and the positions of the batch's examples, int64 (B,).

    Each epoch is shuffled by a generator of (run seed, round, client index, epoch).
    """
    size, left, epoch = local.batch_size, planned_steps(local, examples, seed, round, index), 0
    while left:
        epoch += 1
        order = torch.randperm(examples, generator=torch_generator(seed, "batches", round, index, epoch))
        now = min(left, steps_per_epoch(examples, size, local.drop_last))
        for batch in range(now):
            yield epoch, order[batch * size : (batch + 1) * size]
        left -= now
