"""What an engine maps over: one client's training in one round, a value that can travel."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shared import wire
from shared.algorithms import load_algorithm
from shared.config import RunConfig
from shared.data.partition import common_test, deal_examples, validation_examples
from shared.problems import InvalidConfiguration
from shared.schemas import TensorKind, TensorSpec
from shared.tasks import task_of
from shared.tasks.loading import load_examples
from shared.training import LOCAL_BUFFERS, train
from shared.wire.tensors import manifest_of

if TYPE_CHECKING:
    from torch import nn

    from shared.algorithms.base import Algorithm, Groups, Tensors
    from shared.data import Examples
    from shared.tasks.base import Task
    from shared.training import LocalResult

__all__ = ["Done", "Given", "Job", "Workshop"]


@dataclass(frozen=True)
class Job:
    """One client's part in one round. ``kept`` is its state so far, ``kept_after`` where the new one goes."""

    round: int
    index: int
    relative_size: float
    model: Path
    broadcast: Path | None
    kept: Path | None
    update: Path
    kept_after: Path


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    index: int
    steps: int
    examples: int
    loss: float | None
    seconds: float


@dataclass(frozen=True)
class Given:
    """What the files of a job hold: the model, and the algorithm's groups received and kept."""

    start: Tensors
    received: Groups
    kept: Groups


class Workshop:
    """Task, data, algorithm and one model to work on: built once in each process, used for every job.

    ``cache`` is a folder where decoded data are kept; ``device`` is where models are trained and scored, and
    where the data are resident (None: the CPU).
    """

    def __init__(
        self,
        config: RunConfig,
        source: Path | None,
        cache: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        if config.partition is None:
            raise InvalidConfiguration(
                "partition: a simulation has to be told how the data are dealt.",
                hint="Add a line like `partition: niid2:5+1` to the configuration.",
            )
        self.config = config
        self._partition = config.partition
        self.task: Task = task_of(config)
        self.task.cache = cache
        self.algorithm: Algorithm[Any] = load_algorithm(config.algorithm)
        self.model: nn.Module = self.task.build_model(config.model, config.seed)
        self.manifest: tuple[TensorSpec, ...] = manifest_of(self.model)
        self.device = device or torch.device("cpu")
        self._source = source
        self._whole = load_examples(self.task, "train", source, config.seed)
        self._shares = deal_examples(config.partition, self.task, self._whole, config.seed)
        self._examples: dict[int, Examples] = {}

    @property
    def clients(self) -> int:
        return len(self._shares)

    def examples(self, index: int) -> Examples:
        """The client's own examples, to train on."""
        if index not in self._examples:
            self._examples[index] = self._whole.subset(self._shares[index].train).to(self.device)
        return self._examples[index]

    def counts(self, index: int) -> list[float]:
        """The client's training examples of each class."""
        classes = self.task.categories(self.examples(index).targets).cpu()
        return torch.bincount(classes, minlength=len(self.task.classes)).double().tolist()

    def test_examples(self) -> Examples:
        """The common test set."""
        whole = load_examples(self.task, "test", self._source, self.config.seed)
        return common_test(self.config.partition, self.task, whole).to(self.device)

    def validation_examples(self) -> Examples | None:
        """What ``partition.validation`` keeps of the training set, dealt to nobody; None if it is nothing."""
        if not self._partition.validation:
            return None
        held = validation_examples(self._partition, self.task, self._whole, self.config.seed)
        return held.to(self.device)

    def own_test(self, index: int) -> Examples:
        """What ``partition.held_out`` keeps of the client's examples for a test of its own (or nothing)."""
        return self._whole.subset(self._shares[index].test).to(self.device)

    def work(self, job: Job) -> Done:
        """Train, write the update and what the client keeps."""
        given = self.read(job)
        result = train(
            task=self.task,
            model=self.model,
            algorithm=self.algorithm,
            examples=self.examples(job.index),
            local=self.config.local,
            start=given.start,
            received=given.received,
            kept=given.kept,
            first_time=job.kept is None,
            relative_size=job.relative_size,
            seed=self.config.seed,
            round=job.round,
            index=job.index,
            device=self.device,
            clock=time.perf_counter,
            buffers=self.config.buffers,
        )
        return self.write(job, result)

    def read(self, job: Job) -> Given:
        """The contents of the files that a job starts from."""
        names = [spec.name for spec in self.manifest]
        with wire.opened(job.model) as file:
            start = {name: file.tensor(wire.MODEL, name).clone() for name in names}
        return Given(
            start=start,
            received=self._groups(job.broadcast, self.algorithm.downloads),
            kept=self._groups(job.kept, self.algorithm.keeps) | self._buffers(job.kept),
        )

    def write(self, job: Job, result: LocalResult) -> Done:
        """The update's file, and that of what the client keeps, if it keeps anything."""
        wire.write(job.update, result.tensors, durable=False)  # the round is trained again after a crash
        if any(result.kept.values()):
            wire.write(job.kept_after, result.kept)
        return Done(job.index, result.steps, result.examples, result.loss, result.seconds)

    def _groups(self, path: Path | None, groups: tuple[str, ...]) -> Groups:
        if path is None or not groups:
            return {}
        names = [spec.name for spec in self.manifest if spec.kind is TensorKind.PARAMETER]
        return {group: wire.read_group(path, group, names) for group in groups}

    def _buffers(self, path: Path | None) -> Groups:
        if path is None or self.config.buffers == "average":
            return {}
        names = [spec.name for spec in self.manifest if spec.kind is TensorKind.BUFFER]
        return {LOCAL_BUFFERS: wire.read_group(path, LOCAL_BUFFERS, names)} if names else {}


@lru_cache(maxsize=2)
def workshop(engine: str, config_json: str, source: Path | None, cache: Path | None) -> Workshop:
    """This process's workshop for a configuration, until another engine asks.

    ``engine`` is one name an engine: a cluster's process outlives it, and the data may have changed since.
    """
    return Workshop(RunConfig.model_validate_json(config_json), source, cache)


def work_in_process(engine: str, config_json: str, source: Path | None, cache: Path | None, job: Job) -> Done:
    """What a pool's process runs."""
    return workshop(engine, config_json, source, cache).work(job)
