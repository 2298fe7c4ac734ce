"""Scoring a model on held-out examples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from shared.schemas import Metrics
from shared.training import Diverged

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = ["evaluate"]


def evaluate(
    *, task: Task, model: nn.Module, examples: Examples, device: torch.device, batch_size: int = 512
) -> Metrics:
    """Mean loss, accuracy (0 to 1) and accuracy of each class that the examples hold, by class name.

    The model is moved to ``device`` and scored in evaluation mode; its mode is put back afterwards.

    Raises:
        ValueError: no examples.
        Diverged: the loss is not a finite number.
    """
    if len(examples) == 0:
        raise ValueError("cannot evaluate on no examples")
    was_training = model.training
    model.to(device).eval()
    try:
        loss, right = _score(task, model, examples, device, batch_size)
    finally:
        model.train(was_training)
    if not math.isfinite(loss):
        raise Diverged(f"The loss of the model is {loss} on the {len(examples)} test examples.")
    if right is None:
        return Metrics(loss=loss, accuracy=None, examples=len(examples))
    return Metrics(
        loss=loss,
        accuracy=int(right.sum()) / len(examples),
        examples=len(examples),
        per_category=_per_category(task, right, examples.targets),
    )


@torch.inference_mode()
def _score(
    task: Task, model: nn.Module, examples: Examples, device: torch.device, batch_size: int
) -> tuple[float, Tensor | None]:
    """Mean loss over all examples and whether each is right, on the CPU."""
    total = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    right: list[Tensor] = []
    for first in range(0, len(examples), batch_size):
        inputs = examples.inputs[first : first + batch_size].to(device)
        targets = examples.targets[first : first + batch_size].to(device)
        outputs = model(task.prepare(inputs, None))
        total += task.loss(outputs, targets) * len(targets)
        scores = task.score(outputs, targets)
        if scores is not None:
            right.append(scores)
    return total.item() / len(examples), torch.cat(right).cpu() if right else None


def _per_category(task: Task, right: Tensor, targets: Tensor) -> dict[str, float]:
    categories = task.categories(targets).cpu()
    number = torch.bincount(categories, minlength=len(task.classes))
    hits = torch.bincount(categories[right], minlength=len(task.classes))
    pairs = zip(task.classes, hits.tolist(), number.tolist(), strict=True)
    return {name: hit / count for name, hit, count in pairs if count}
