"""Scoring a model on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.metric_names import CONFUSION
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
    metrics: Sequence[str] = (),
) -> Metrics:
    """Mean loss, accuracy (0 to 1), accuracy of each class that the examples hold, the task's measures.

    ``metrics`` are scores over all examples, by name (:mod:`shared.metric_names`); the task's own come with
    them. A loss that is no finite number is a result too (None), as are such measures (left out).
    The model is moved to ``device`` and scored in evaluation mode; its mode is put back afterwards.

    Raises:
        ValueError: no examples.
    """
    if len(examples) == 0:
        raise ValueError("cannot evaluate on no examples")
    was_training = model.training
    model.to(device).eval()
    try:
        scores = _score(task, model, examples, device, batch_size, keep=bool(metrics) or _has_own(task))
    finally:
        model.train(was_training)
    right = scores.right
    confusion, over_all = _over_all(task, scores.outputs, examples.targets, metrics)
    extra = scores.measures | over_all
    return Metrics(
        loss=scores.loss if math.isfinite(scores.loss) else None,
        accuracy=None if right is None else int(right.sum()) / len(examples),
        examples=len(examples),
        per_category={} if right is None else _per_category(task, right, examples.targets),
        extra={name: value for name, value in extra.items() if math.isfinite(value)},
        confusion=confusion,
    )


def _has_own(task: Task) -> bool:
    """Whether the task has scores over a whole test set of its own."""
    from shared.tasks.base import Task

    return type(task).metrics is not Task.metrics


@torch.inference_mode()
def _over_all(
    task: Task, outputs: Tensor | None, targets: Tensor, names: Sequence[str]
) -> tuple[list[list[float]] | None, dict[str, float]]:
    """The confusion matrix, if it is asked for, and the scores over all examples."""
    if outputs is None:
        return None, {}
    targets = targets.cpu()
    own = {name: float(value) for name, value in task.metrics(outputs, targets).items()}
    if not names:
        return None, own
    from shared.training.metrics import compute_confusion, compute_metrics

    probabilities = task.predict(outputs).float()
    found = compute_metrics(names, probabilities, targets, task.classes)
    return compute_confusion(probabilities, targets) if CONFUSION in names else None, found | own


@dataclass(frozen=True)
class _Scores:
    """Mean loss and mean measures over all examples; whether each is right, and all outputs, on the CPU."""

    loss: float
    right: Tensor | None
    measures: dict[str, float]
    outputs: Tensor | None


@torch.inference_mode()
def _score(
    task: Task, model: nn.Module, examples: Examples, device: torch.device, batch_size: int, *, keep: bool
) -> _Scores:
    number, wide = len(examples), torch.float64 if device.type != "mps" else torch.float32
    sums: dict[str, Tensor] = {}
    right: list[Tensor] = []
    said: list[Tensor] = []
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
        if keep:
            said.append(outputs.cpu())
    return _Scores(
        loss=total.item() / number,
        right=torch.cat(right).cpu() if right else None,
        measures={name: value.item() / number for name, value in sums.items()},
        outputs=torch.cat(said) if said else None,
    )


def _per_category(task: Task, right: Tensor, targets: Tensor) -> dict[str, float]:
    categories = task.categories(targets).cpu()
    number = torch.bincount(categories, minlength=len(task.classes))
    hits = torch.bincount(categories[right], minlength=len(task.classes))
    pairs = zip(task.classes, hits.tolist(), number.tolist(), strict=True)
    return {name: hit / count for name, hit, count in pairs if count}
