"""What an engine maps over: one client's training in one round, as values that can travel."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import torch

from shared import wire
from shared.algorithms import load_algorithm
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.tasks import task_of
from shared.tasks.loading import load_examples
from shared.training.private import seeded_key
from shared.training.workbench import ClientTask, Workbench
from simulation.kernels import KernelsName, use_kernels

__all__ = ["ClientResult", "Job", "WorkbenchSpec", "carry_out", "carry_out_in_process", "workbench_of"]

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """A client's task, and the files that its update and what it keeps are written to."""

    task: ClientTask
    update: Path
    kept: Path


@dataclass(frozen=True)
class ClientResult:
    """What came of a job, beside its files; ``seconds`` is how long the training took."""

    index: int
    steps: int
    examples: int
    loss: float | None
    seconds: float
    start_loss: float | None = None
    end_loss: float | None = None


@dataclass(frozen=True)
class WorkbenchSpec:
    """All that a process needs to build a run's workbench.

    ``cache`` is a folder where decoded data are kept, ``kernels`` how a client is computed. ``engine`` is one
    name an engine: a cluster's process outlives it, and the data may have changed since.
    """

    config_json: str
    source: Path | None = None
    cache: Path | None = None
    kernels: KernelsName = "torch"
    engine: str = ""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        source: Path | None = None,
        cache: Path | None = None,
        kernels: KernelsName = "torch",
    ) -> Self:
        return cls(config.model_dump_json(), source, cache, kernels)

    def build(self, device: torch.device = CPU) -> Workbench:
        """The workbench, with models and data on ``device``.

        Raises:
            InvalidConfiguration: no partition, no such task or data, or kernels that can't compute the model.
        """
        config = RunConfig.model_validate_json(self.config_json)
        if config.partition is None:
            raise InvalidConfiguration(
                "partition: a simulation has to be told how the data are dealt.",
                hint="Add a line like `partition: niid2:5+1` to the configuration.",
            )
        task = task_of(config)
        task.cache = self.cache
        splits = lru_cache(lambda split: load_examples(task, split, self.source, config.seed))
        if config.dp is not None and self.kernels != "torch":
            raise InvalidConfiguration(
                f"dp: the {self.kernels} kernels make no gradients of single examples",
                hint="Simulate it with --kernels torch.",
            )
        algorithm = load_algorithm(config.algorithm)
        workbench = Workbench(config, task, algorithm, splits, config.partition, device)
        workbench.gradients = use_kernels(self.kernels, workbench.model, task)
        return workbench


def carry_out(workbench: Workbench, job: Job) -> ClientResult:
    """Train, write the update and what the client keeps, if it keeps anything."""
    key = seeded_key(workbench.config.seed, job.task.round, job.task.index)
    private = workbench.make_private(job.task, key)
    result = workbench.train(job.task, clock=time.perf_counter, private=private)
    wire.write(job.update, result.tensors, durable=False)  # the round is trained again after a crash
    if any(result.kept.values()):
        wire.write(job.kept, result.kept)
    return ClientResult(
        index=job.task.index,
        steps=result.steps,
        examples=result.examples,
        loss=result.loss,
        seconds=result.seconds,
        start_loss=result.start_loss,
        end_loss=result.end_loss,
    )


@lru_cache(maxsize=2)
def workbench_of(spec: WorkbenchSpec) -> Workbench:
    """This process's workbench, until other engines ask."""
    return spec.build()


def carry_out_in_process(spec: WorkbenchSpec, job: Job) -> ClientResult:
    """What a process of a pool or of a cluster runs; it keeps the workbench for the next job."""
    return carry_out(workbench_of(spec), job)
