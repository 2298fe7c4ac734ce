"""All clients of a round trained as one model: the engine ``grouped``.

The clients' parameters are rows of stacked tensors. One forward and one backward pass, and one step of SGD,
serve all of them; batches, augmentation, loss and the algorithm's hooks are each client's own, so that the
results are those of the other engines but for the order in which floats are summed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from shared.algorithms.base import Algorithm, LocalRound
from shared.data import Examples
from shared.problems import InvalidConfiguration
from shared.reproducible import reproducible
from shared.seeds import derive, torch_generator
from shared.tasks.base import Task
from shared.training.batches import batches, planned_steps
from shared.training.local_round import Diverged, LocalResult, local_result, local_round
from shared.training.sgd import fused_step
from simulation.jobs import Done, Job, Workshop
from simulation.stacked import ENGINE_HINT, Rows, StackedModel

__all__ = ["LARGEST", "Grouped"]

LARGEST = 10
"""Clients trained as one, at most: activations of more fall out of the caches, and memory stays bounded."""


class Grouped:
    """Up to ``LARGEST`` clients at once, in this process.

    Raises:
        InvalidConfiguration: a model of unknown layers, or an algorithm that adds to the loss.
    """

    def __init__(self, workshop: Workshop) -> None:
        if _overrides(workshop.algorithm, "extra_loss"):
            raise InvalidConfiguration(
                f"engine: grouped cannot train {workshop.config.algorithm.name}, "
                "which adds a term of its own to the loss (extra_loss).",
                hint=ENGINE_HINT,
            )
        self._workshop = workshop
        self._function = StackedModel(workshop.model)
        self._rows: dict[int, Rows] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.clear()

    def map(self, jobs: Sequence[Job]) -> list[Done]:
        """Clients of equal numbers of steps come together; results in the order of ``jobs``."""
        planned = sorted(jobs, key=self._steps, reverse=True)
        done: dict[int, Done] = {}
        for first in range(0, len(planned), LARGEST):
            for made in self._work(planned[first : first + LARGEST]):
                done[made.index] = made
        return [done[job.index] for job in jobs]

    def _steps(self, job: Job) -> int:
        config, examples = self._workshop.config, self._workshop.examples(job.index)
        return planned_steps(config.local, len(examples), config.seed, job.round, job.index)

    def _work(self, jobs: Sequence[Job]) -> list[Done]:
        """``jobs``, those of the most steps first."""
        workshop, began = self._workshop, time.perf_counter()
        if len(jobs) not in self._rows:
            self._rows[len(jobs)] = Rows(workshop.model, len(jobs))
        rows = self._rows[len(jobs)]
        clients = [self._client(job, model) for job, model in zip(jobs, rows.models, strict=True)]
        seed = derive(workshop.config.seed, "dropout", jobs[0].round, jobs[0].index)
        with reproducible(seed, workshop.device):  # for hooks that draw; the known layers do not
            for client in clients:
                workshop.algorithm.begin(client.state)
            _Loop(workshop, self._function, rows, clients).run()
            seconds = (time.perf_counter() - began) / len(jobs)
            results = [self._result(client, seconds) for client in clients]
        return [workshop.write(job, result) for job, result in zip(jobs, results, strict=True)]

    def _client(self, job: Job, model: nn.Module) -> _Client:
        workshop, config, given = self._workshop, self._workshop.config, self._workshop.read(job)
        examples = workshop.examples(job.index)
        draws = (config.seed, job.round, job.index)
        return _Client(
            state=local_round(
                model,
                workshop.algorithm,
                config.local,
                given.start,
                given.received,
                given.kept,
                job.kept is None,
                job.relative_size,
                buffers=config.buffers,
            ),
            examples=examples,
            steps=planned_steps(config.local, len(examples), *draws),
            order=batches(config.local, len(examples), *draws),
            augmentation=torch_generator(config.seed, "augmentation", job.round, job.index),
            name=f"client {job.index} in round {job.round}",
        )

    def _result(self, client: _Client, seconds: float) -> LocalResult:
        """``seconds`` is an equal share of the group's."""
        examples, loss = len(client.examples), client.mean_loss
        buffers = self._workshop.config.buffers
        return local_result(self._workshop.algorithm, client.state, examples, loss, seconds, buffers=buffers)


@dataclass
class _Client:
    """One row: the client's own model, data, order and draws."""

    state: LocalRound
    examples: Examples
    steps: int
    order: Iterator[tuple[int, Tensor]]
    augmentation: torch.Generator
    name: str
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))

    @property
    def mean_loss(self) -> float | None:
        return self.loss_sum.item() / self.state.steps if self.state.steps else None

    def batch(self, task: Task) -> tuple[Tensor, Tensor]:
        """The next prepared inputs (B, ...) and targets (B,)."""
        _, positions = next(self.order)
        batch = self.examples.subset(positions)
        return task.prepare(batch.inputs, self.augmentation), batch.targets


class _Loop:
    """Steps of a group; a client whose steps are done leaves it, the last rows first."""

    def __init__(
        self, workshop: Workshop, function: StackedModel, rows: Rows, clients: Sequence[_Client]
    ) -> None:
        self._task, self._algorithm = workshop.task, workshop.algorithm
        self._local = workshop.config.local
        self._function, self._rows, self._clients = function, rows, clients
        self._velocities = {name: torch.zeros_like(stack) for name, stack in rows.stacks.items()}
        self._each_gradient = _overrides(self._algorithm, "on_gradient") or self._local.clip_norm is not None
        self._each_step = _overrides(self._algorithm, "on_step")

    def run(self) -> None:
        active, leaves = list(self._clients), self._rows.first(len(self._clients))
        for step in range(1, max(client.steps for client in active) + 1):
            if active[-1].steps < step:
                active = [client for client in active if client.steps >= step]
                leaves = self._rows.first(len(active))
            self._backward(active, leaves)
            if self._each_gradient:
                self._each_changes_its_gradient(active, leaves)
            self._descend(leaves, len(active))
            for client in active:
                client.state.steps = step
                if self._each_step:
                    self._algorithm.on_step(client.state)
                self._look(client, step)

    def _backward(self, active: Sequence[_Client], leaves: dict[str, Tensor]) -> None:
        """Gradients of the sum of the clients' losses: none depends on another's parameters."""
        inputs, targets = zip(*(client.batch(self._task) for client in active), strict=True)
        outputs = self._function(inputs, leaves)  # (K, B, outputs)
        losses = [self._task.loss(row[: len(t)], t) for row, t in zip(outputs, targets, strict=True)]
        for leaf in leaves.values():
            leaf.grad = None
        torch.autograd.backward(losses)
        for client, loss in zip(active, losses, strict=True):
            client.loss_sum += loss.detach()

    def _each_changes_its_gradient(self, active: Sequence[_Client], leaves: dict[str, Tensor]) -> None:
        """The hook and the clipping, on each client's row of the gradients as if it were alone."""
        for row, client in enumerate(active):
            parameters = client.state.parameters
            for name, parameter in parameters.items():
                gradient = leaves[name].grad
                parameter.grad = None if gradient is None else gradient[row]
            self._algorithm.on_gradient(client.state)
            if self._local.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters.values(), self._local.clip_norm)
            for name, parameter in parameters.items():
                if parameter.grad is not None and (gradient := leaves[name].grad) is not None:
                    gradient[row] = parameter.grad  # a hook may have put another tensor there

    @torch.no_grad()
    def _descend(self, leaves: dict[str, Tensor], count: int) -> None:
        local = self._local
        names = [name for name, leaf in leaves.items() if leaf.grad is not None]
        for dtype in {leaves[name].dtype for name in names}:
            chosen = [name for name in names if leaves[name].dtype == dtype]
            fused_step(
                [leaves[name] for name in chosen],
                [gradient for name in chosen if (gradient := leaves[name].grad) is not None],
                [self._velocities[name][:count] for name in chosen] if local.momentum else [],
                local.learning_rate,
                local.momentum,
                local.weight_decay,
                first=False,  # the velocities are zeros, which gives the same
            )

    def _look(self, client: _Client, step: int) -> None:
        """Give up as soon as a loss is no number."""
        if not math.isfinite(mean := client.loss_sum.item() / step):
            raise Diverged(f"The loss is {mean} at step {step} of {client.steps} of {client.name}.")


def _overrides(algorithm: Algorithm[Any], hook: str) -> bool:
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook)
