"""Labelled examples that belong to no client, where rounds are aggregated (``shared.aggregation.proxy``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shared.wire.tensors import trainable

if TYPE_CHECKING:
    from torch import nn

    from shared.algorithms.base import Tensors
    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = ["ProxySet"]


class ProxySet:
    """``examples`` in batches, in one order; the parameters of ``model`` are overwritten at every use."""

    def __init__(self, task: Task, model: nn.Module, examples: Examples, batch_size: int) -> None:
        self._task = task
        self._model = model
        self._examples = examples
        self._batch_size = batch_size

    @property
    def batches(self) -> int:
        return -(-len(self._examples) // self._batch_size)

    def gradient(self, parameters: Tensors, batch: int) -> Tensors:
        """Of the batch's mean loss in evaluation mode, on the CPU; 0 where it has no part in it."""
        live = trainable(self._model)
        with torch.no_grad():
            for name, value in parameters.items():
                live[name].copy_(value)
        first = batch * self._batch_size
        inputs = self._examples.inputs[first : first + self._batch_size]
        targets = self._examples.targets[first : first + self._batch_size]
        self._model.eval()
        loss = self._task.loss(self._model(self._task.prepare(inputs, None)), targets)
        slopes = torch.autograd.grad(loss, list(live.values()), allow_unused=True, materialize_grads=True)
        return {name: slope.cpu() for name, slope in zip(live, slopes, strict=True)}
