"""Algorithms and models that private training cannot go with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from shared.algorithms.base import Algorithm
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from shared.config import RunConfig

__all__ = ["check_private", "check_private_model"]


def check_private(config: RunConfig, algorithm: Algorithm[Any]) -> None:
    """Raise :class:`InvalidConfiguration` if the run's algorithm does not go with its ``dp``."""
    if config.dp is None:
        return
    name = config.algorithm.name
    if algorithm.tells != "nothing":
        raise InvalidConfiguration(
            f"dp: {name} sums features of the examples, to which no noise is added",
            hint="Take another algorithm, or leave out `dp`.",
        )
    if type(algorithm).extra_loss is not Algorithm.extra_loss:
        raise InvalidConfiguration(
            f"dp: {name} adds a term to the loss of a batch, which is not clipped an example at a time",
            hint="fedavg, fedavgm, fedprox, scaffold, fednova, feddyn, feddc and fedopt go with `dp`.",
        )


def check_private_model(config: RunConfig, model: nn.Module) -> None:
    """Raise :class:`InvalidConfiguration` if a model ties the examples of a batch to one another."""
    if config.dp is None:
        return
    for reason in _list_ties(model):
        raise InvalidConfiguration(
            f"dp: the model {config.model or 'of the task'} has {reason}",
            hint="Take a model with group normalisation, like resnet18-gn, or without normalisation.",
        )


def _list_ties(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"batch normalisation ({name}), which ties the examples of a batch to one another"
        if isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) and (
            module.track_running_stats
        ):
            yield f"running statistics ({name}), to which no noise is added"
