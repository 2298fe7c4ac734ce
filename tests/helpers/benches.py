"""A run's data and model as one process has them, for tests that look at what sites hold."""

from __future__ import annotations

import torch

from shared.algorithms import load_algorithm
from shared.config import RunConfig
from shared.tasks import task_of
from shared.tasks.base import Task
from shared.tasks.loading import load_examples
from shared.training.workbench import Workbench

__all__ = ["make_bench"]


def make_bench(config: RunConfig, task: Task | None = None) -> Workbench:
    """On the CPU, with the data of the run's task, or of ``task``, dealt by the run's partition."""
    task = task if task is not None else task_of(config)
    return Workbench(
        config=config,
        task=task,
        algorithm=load_algorithm(config.algorithm),
        load=lambda split: load_examples(task, split, None, config.seed),
        partition=config.partition,
        device=torch.device("cpu"),
    )
