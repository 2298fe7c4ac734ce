"""How many batches a round of local training has, and in which order the examples come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from shared.problems import InvalidConfiguration
from shared.seeds import derive, torch_generator

if TYPE_CHECKING:
    from torch import Tensor

    from shared.config import LocalTraining

__all__ = [
    "batches",
    "check_batches",
    "epochs_of",
    "joins_last",
    "planned_steps",
    "smallest_batch",
    "steps_per_epoch",
]


def smallest_batch(model: nn.Module) -> int:
    """Examples that a batch needs: 2 where batch normalisation takes its statistics from the batch."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return 2 if any(isinstance(module, kinds) for module in model.modules()) else 1


def check_batches(local: LocalTraining, examples: int, smallest: int) -> None:
    """Raise :class:`InvalidConfiguration` where no batch of ``smallest`` examples can be made."""
    if examples and min(examples, local.batch_size) < smallest:
        what = "there is 1 example" if examples < smallest else f"local.batch_size is {local.batch_size}"
        raise InvalidConfiguration(
            f"the model has batch normalisation, which needs {smallest} examples in a batch; {what}.",
            hint="Take part with more examples, a larger batch, or a model without it (like resnet18-gn).",
        )


def joins_last(local: LocalTraining, examples: int, smallest: int) -> bool:
    """Whether an epoch's last batch would be too small, so that it is joined to the one before it."""
    whole, rest = divmod(examples, local.batch_size)
    return bool(whole) and 0 < rest < smallest and not local.drop_last


def steps_per_epoch(examples: int, batch_size: int, drop_last: bool) -> int:
    """Batches of an epoch; an incomplete last one is dropped unless it is the only one.

    >>> steps_per_epoch(130, 64, True), steps_per_epoch(130, 64, False), steps_per_epoch(10, 64, True)
    (2, 3, 1)
    """
    whole, rest = divmod(examples, batch_size)
    return whole + (1 if rest and (whole == 0 or not drop_last) else 0)


def _steps_per_epoch(local: LocalTraining, examples: int, smallest: int) -> int:
    steps = steps_per_epoch(examples, local.batch_size, local.drop_last)
    return steps - joins_last(local, examples, smallest)


def planned_steps(
    local: LocalTraining, examples: int, seed: int, round: int, index: int, smallest: int = 1
) -> int:
    """Optimizer steps of one round of a client with so many examples; none without examples.

    ``seed`` (the run's), ``round`` and ``index`` draw them, uniformly, where ``local`` gives a range.
    ``smallest`` is that of :func:`smallest_batch`, here and below.
    """
    if examples == 0:
        return 0
    if local.steps_range is not None:
        lowest, highest = local.steps_range
        return lowest + derive(seed, "steps", round, index) % (highest - lowest + 1)
    if local.steps is not None:
        return local.steps
    return (local.epochs or 0) * _steps_per_epoch(local, examples, smallest)


def epochs_of(steps: int, local: LocalTraining, examples: int, smallest: int = 1) -> int:
    """Epochs that so many steps take, begun ones counted whole."""
    return -(-steps // max(1, _steps_per_epoch(local, examples, smallest)))


def batches(
    local: LocalTraining, examples: int, seed: int, round: int, index: int, smallest: int = 1
) -> Iterator[tuple[int, Tensor]]:
    """For each planned step the epoch (from 1) and the positions of the batch's examples, int64 (B,).

    Each epoch is shuffled by a generator of (run seed, round, client index, epoch).
    """
    size, left, epoch = local.batch_size, planned_steps(local, examples, seed, round, index, smallest), 0
    steps = _steps_per_epoch(local, examples, smallest)
    while left:
        epoch += 1
        order = torch.randperm(examples, generator=torch_generator(seed, "batches", round, index, epoch))
        now = min(left, steps)
        for batch in range(now):
            joined = batch == steps - 1 and joins_last(local, examples, smallest)
            yield epoch, order[batch * size : examples if joined else (batch + 1) * size]
        left -= now
