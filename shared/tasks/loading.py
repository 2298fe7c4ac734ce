"""Loading a split for use: all that trains or scores loads its examples here, so all are checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shared.problems import DataUnfit
from shared.tasks.base import ask_nearest

if TYPE_CHECKING:
    from shared.data import Examples
    from shared.tasks.base import Split, Task

__all__ = ["check_labels", "load_examples"]


def load_examples(task: Task, split: Split, source: Path | None, seed: int) -> Examples:
    """What ``task.load`` gives, checked against the class contract.

    Raises:
        DataUnfit: a label is none of the classes, or an input or target is not a finite number.
        InvalidConfiguration: see :meth:`shared.tasks.base.Task.load`.
    """
    check_labels(task)
    examples = task.load(split, source, seed)
    if len(examples):
        _check_finite(examples.inputs, split, "an input")
        _check_finite(examples.targets, split, "a target")
        _check_categories(task, task.categories(examples.targets), split, len(examples))
    return examples


def check_labels(task: Task) -> None:
    """Raise :class:`DataUnfit` where the site's map leads to no class of the contract."""
    for name, label in task.labels.items():
        if label not in task.classes:
            raise DataUnfit(
                f"labels: {name!r} stands for {label!r}, which is none of the classes {list(task.classes)}.",
                hint=ask_nearest(label, task.classes) or "Write the class as the run does.",
            )


def _check_finite(values: Tensor, split: str, what: str) -> None:
    if not values.is_floating_point():
        return
    bad = torch.nonzero(~torch.isfinite(values).reshape(len(values), -1).all(dim=1)).flatten()
    if len(bad):
        raise DataUnfit(
            f"data: {len(bad)} of {len(values)} {split} examples have {what} that is not a finite number, "
            f"the first is example {int(bad[0])}.",
            hint="Leave such examples out, or fill them in; the task's `load` decides.",
        )


def _check_categories(task: Task, categories: Tensor, split: str, number: int) -> None:
    classes = len(task.classes)
    whole = not (categories.is_floating_point() or categories.is_complex())
    if not whole or categories.shape != (number,):
        raise DataUnfit(
            f"data: the classes of {number} {split} examples are {categories.dtype} of shape "
            f"{list(categories.shape)}, not {number} whole numbers.",
            hint="A label is the position of its class in the contract; a regression overrides `categories`.",
        )
    bad = torch.nonzero((categories < 0) | (categories >= classes)).flatten()
    if len(bad):
        raise DataUnfit(
            f"data: {len(bad)} of {number} {split} examples have a label that is none of the run's classes, "
            f"the first is example {int(bad[0])} with {int(categories[bad[0]])}.",
            hint=f"Labels go from 0 ({task.classes[0]}) to {classes - 1} ({task.classes[-1]}).",
        )
