"""Scoring a model on held-out examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.schemas import Metrics

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = ["EVALUATION_BATCH", "evaluate"]

EVALUATION_BATCH = 512
"""Examples that are scored at once."""


def evaluate(
    *,
    task: Task,
    model: nn.Module,
    examples: Examples,
    device: torch.device,
    batch_size: int = EVALUATION_BATCH,
) -> Metrics:
    """Mean loss, accuracy (0 to 1), accuracy of each class that the examples hold, the task's measures.

    A loss that is no finite number is a result too (None), as are such measures (left out).
    The model is moved to ``device`` and scored in evaluation mode; its mode is put back afterwards.

    Raises:
        ValueError: no examples.
    """
    if len(examples) == 0:
        raise ValueError("cannot evaluate on no examples")
    was_training = model.training
    model.to(device).eval()
    try:
        scores = _score(task, model, examples, device, batch_size)
    finally:
        model.train(was_training)
    right = scores.right
    return Metrics(
        loss=scores.loss if math.isfinite(scores.loss) else None,
        accuracy=None if right is None else int(right.sum()) / len(examples),
        examples=len(examples),
        per_category={} if right is None else _per_category(task, right, examples.targets),
        extra={name: value for name, value in scores.measures.items() if math.isfinite(value)},
    )


@dataclass(frozen=True)
class _Scores:
    """Mean loss and mean measures over all examples; whether each is right, on the CPU."""

    loss: float
    right: Tensor | None
    measures: dict[str, float]


@torch.inference_mode()
def _score(
    task: Task, model: nn.Module, examples: Examples, device: torch.device, batch_size: int
) -> _Scores:
    number, wide = len(examples), torch.float64 if device.type != "mps" else torch.float32
    sums: dict[str, Tensor] = {}
    right: list[Tensor] = []
    total = torch.zeros((), dtype=wide, device=device)
    for first in range(0, number, batch_size):
        inputs = examples.inputs[first : first + batch_size].to(device)
        targets = examples.targets[first : first + batch_size].to(device)
        outputs = model(task.prepare(inputs, None))
        total += task.loss(outputs, targets) * len(targets)
        for name, values in task.measures(outputs, targets).items():
            sums[name] = sums.get(name, torch.zeros_like(total)) + values.sum(dtype=wide)
        scores = task.score(outputs, targets)
        if scores is not None:
            right.append(scores)
    return _Scores(
        loss=total.item() / number,
        right=torch.cat(right).cpu() if right else None,
        measures={name: value.item() / number for name, value in sums.items()},
    )


def _per_category(task: Task, right: Tensor, targets: Tensor) -> dict[str, float]:
    categories = task.categories(targets).cpu()
    number = torch.bincount(categories, minlength=len(task.classes))
    hits = torch.bincount(categories[right], minlength=len(task.classes))
    pairs = zip(task.classes, hits.tolist(), number.tolist(), strict=True)
    return {name: hit / count for name, hit, count in pairs if count}
