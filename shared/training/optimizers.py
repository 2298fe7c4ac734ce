"""What takes a client's steps, and what it steps down: the optimizer and the loss of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.own_parts import import_part
from shared.problems import InvalidConfiguration
from shared.training.sgd import SGD

if TYPE_CHECKING:
    from shared.config import LocalTraining
    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = ["check_local", "find_loss", "is_cross_entropy", "make_optimizer"]

Loss = Callable[[Tensor, Tensor], Tensor]


def make_optimizer(
    parameters: Sequence[nn.Parameter], local: LocalTraining, *, scaled: bool
) -> SGD | torch.optim.Optimizer:
    """The round's optimizer. ``scaled``: it is stepped by a gradient scaler, which takes PyTorch's own only.

    Somebody's own is called with (parameters, learning rate, weight decay).

    Raises:
        InvalidConfiguration: it cannot be imported, or makes no optimizer.
    """
    rate, decay = local.learning_rate, local.weight_decay
    match local.optimizer:
        case "sgd" if scaled:
            return torch.optim.SGD(parameters, rate, local.momentum, weight_decay=decay, fused=True)
        case "sgd":
            return SGD(parameters, rate, local.momentum, weight_decay=decay)
        case "adam":
            return torch.optim.Adam(parameters, rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, rate, weight_decay=decay)
        case path:
            made = import_part("local.optimizer", path)(list(parameters), rate, decay)
    if not isinstance(made, torch.optim.Optimizer):
        raise InvalidConfiguration(
            f"local.optimizer: {path!r} made {type(made).__name__}, which is no torch.optim.Optimizer."
        )
    return made


def find_loss(
    task: Task, local: LocalTraining, examples: Examples, device: torch.device, *, of_single: bool = False
) -> Loss:
    """The mean loss of a batch, of outputs and targets.

    ``of_single``: of batches of one example each, as private training takes them. The weight of its class
    then multiplies its loss: a mean over the batch's weights would divide by it again.
    """
    if local.loss is not None:
        own: Loss = import_part("local.loss", local.loss)
        return own
    if local.class_weights is None:
        return task.loss
    weights = _find_weights(task, local.class_weights, examples).to(device)
    reduction = "sum" if of_single else "mean"

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            outputs, targets, weight=weights.to(outputs.dtype), reduction=reduction
        )

    return weighted


def _find_weights(task: Task, given: str | tuple[float, ...], examples: Examples) -> Tensor:
    """``balanced``: N / (C n_c) over the C classes that the client has, 1 for the others."""
    if isinstance(given, tuple):
        return torch.tensor(given, dtype=torch.float32)
    counts = torch.bincount(task.categories(examples.targets).cpu(), minlength=len(task.classes)).double()
    present = counts > 0
    balanced = counts.sum() / (present.sum() * counts.clamp(min=1))
    return torch.where(present, balanced, 1.0).float()


def is_cross_entropy(task: Task, local: LocalTraining) -> bool:
    """Whether the loss is the plain cross-entropy of the classes, all of them alike."""
    return local.loss is None and local.class_weights is None and _is_of_classes(task)


def _is_of_classes(task: Task) -> bool:
    """Whether the task's own loss is the cross-entropy of its classes."""
    from shared.tasks.base import Task

    return type(task).loss is Task.loss and task.outputs == len(task.classes)


def check_local(task: Task, local: LocalTraining) -> None:
    """Raises InvalidConfiguration for class weights where the loss is no cross-entropy of the classes."""
    if local.class_weights is None:
        return
    if not _is_of_classes(task):
        raise InvalidConfiguration(
            f"local.class_weights: the loss of task {task.name!r} is no plain cross-entropy of its classes",
            hint="Leave them out, or name a loss of your own in local.loss.",
        )
    if isinstance(local.class_weights, tuple) and len(local.class_weights) != len(task.classes):
        raise InvalidConfiguration(
            f"local.class_weights: {len(local.class_weights)} for {len(task.classes)} classes"
        )
