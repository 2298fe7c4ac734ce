"""The local loop: what one client does in one round, in the worker and in the simulation alike.

Every algorithm runs through this loop; what it changes is in its hooks (``shared.algorithms.base``).
Equal arguments give equal bits on one type of machine with one number of threads, whatever was
drawn from the global generators before; those are left as they were found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from shared.algorithms.base import Algorithm, Batch, LocalRound
from shared.reproducible import flush_denormals, reproducible
from shared.seeds import derive, torch_generator
from shared.training.batches import batches, check_batches, epochs_of, planned_steps, smallest_batch
from shared.training.evaluation import EVALUATION_BATCH
from shared.training.local_round import LOCAL_BUFFERS, Diverged, LocalResult, local_result, local_round
from shared.training.optimizers import find_loss, is_cross_entropy, make_optimizer
from shared.training.sgd import SGD

if TYPE_CHECKING:
    from shared.config import LocalTraining
    from shared.data import Examples
    from shared.tasks.base import Task
    from shared.training.private import PrivateGradients, PrivateRound

__all__ = [
    "LOCAL_BUFFERS",
    "Diverged",
    "Gradients",
    "LocalResult",
    "Precision",
    "Stopped",
    "TrainProgress",
    "train",
]

Precision = Literal["float32", "bfloat16", "float16"]

Gradients = Callable[[Tensor, Tensor], float | None]
"""Fills the gradients of a model's parameters with those of a batch's mean cross-entropy, and returns that.

The batch are prepared inputs (B, ...) and labels (B,). None: autograd has to, and nothing was filled.
"""

LOSS_EVERY = 32
"""Steps between two looks at the loss: each look waits for the accelerator."""


class Stopped(Exception):
    """``should_stop`` said so; nothing of the round is kept."""


@dataclass(frozen=True)
class TrainProgress:
    """Where local training stands; ``epoch`` and ``step`` count from 1, ``loss`` is the newest mean known."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None


def train(
    *,
    task: Task,
    model: nn.Module,
    algorithm: Algorithm[Any],
    examples: Examples,
    local: LocalTraining,
    start: Mapping[str, Tensor],
    received: Mapping[str, Mapping[str, Tensor]],
    kept: Mapping[str, Mapping[str, Tensor]],
    first_time: bool,
    relative_size: float,
    seed: int,
    round: int,
    index: int,
    device: torch.device,
    clock: Callable[[], float],
    precision: Precision = "float32",
    buffers: Literal["average", "keep-local"] = "average",
    on_progress: Callable[[TrainProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    private: PrivateRound | None = None,
    gradients: Gradients | None = None,
) -> LocalResult:
    """Train ``model`` (overwritten by ``start``) on ``examples`` for one round.

    ``start`` holds every tensor of the manifest, ``received`` and ``kept`` the algorithm's groups
    (a missing group is zero); with ``keep-local`` buffers, ``kept[LOCAL_BUFFERS]`` and the result's
    ``kept[LOCAL_BUFFERS]`` carry the client's own. ``seed`` is the run's; ``clock`` gives seconds.
    ``private``: by DP-SGD, with samples and noise of its key in place of the run's batches. ``gradients``:
    what makes a batch's in place of autograd, while the loss is the cross-entropy and nothing else.

    Raises:
        Stopped: ``should_stop`` (asked before every batch) said so.
        Diverged: the loss or a parameter became NaN or infinite.
        InvalidConfiguration: the model has nothing to train, or needs larger batches.
    """
    began = clock()
    model.to(device)
    state = local_round(
        model,
        algorithm,
        local,
        start,
        received,
        kept,
        first_time,
        relative_size,
        buffers=buffers,
        round=round,
        look=partial(_look, task, examples, device),
    )
    loss = find_loss(task, local, examples, device, of_single=private is not None)
    loop = _Loop(task, algorithm, state, local, device, precision, loss)
    is_alone = is_cross_entropy(task, local) and type(algorithm).extra_loss is Algorithm.extra_loss
    if is_alone and precision == "float32":
        loop.gradients = gradients
    smallest = smallest_batch(model)
    check_batches(local, len(examples), smallest)
    if not algorithm.trains(round):
        local = local.model_copy(update={"epochs": None, "steps": 0, "steps_range": None})
    steps = planned_steps(local, len(examples), seed, round, index, smallest)
    epochs = epochs_of(steps, local, len(examples), smallest)
    order = batches(local, len(examples), seed, round, index, smallest)
    if private is not None:
        order = loop.train_privately(private, len(examples), steps, epochs)
    augmentation = torch_generator(seed, "augmentation", round, index)
    with reproducible(derive(seed, "dropout", round, index), device), flush_denormals():
        algorithm.begin(state)
        for step, (epoch, positions) in enumerate(order, start=1):
            if should_stop is not None and should_stop():
                raise Stopped(f"stopped before step {step} of {steps}")
            loop.step(examples, positions, augmentation)
            if step % loop.look_every == 0 or step == steps:
                loop.look(step, f"step {step} of {steps} in round {round}")
            if on_progress is not None:
                on_progress(TrainProgress(epoch, epochs, step, steps, loop.mean_loss))
        return local_result(algorithm, state, len(examples), loop.mean_loss, clock() - began, buffers=buffers)


def _look(task: Task, examples: Examples, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Once over all examples, as they are scored."""
    for first in range(0, len(examples), EVALUATION_BATCH):
        inputs = examples.inputs[first : first + EVALUATION_BATCH].to(device)
        yield task.prepare(inputs, None), examples.targets[first : first + EVALUATION_BATCH].to(device)


class _Loop:
    """One step, and the loss so far; the sum stays on the device until somebody looks."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm[Any],
        state: LocalRound,
        local: LocalTraining,
        device: torch.device,
        precision: Precision,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.loss = loss
        self.task, self.algorithm, self.state, self.device = task, algorithm, state, device
        self.parameters = list(state.parameters.values())
        self.clip_norm = local.clip_norm
        self.dtype = None if precision == "float32" else getattr(torch, precision)
        self.scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and precision == "float16")
        self.optimizer = make_optimizer(self.parameters, local, scaled=self.scaler.is_enabled())
        self.look_every = 1 if device.type == "cpu" else LOSS_EVERY
        self.mean_loss: float | None = None
        self.gradients: Gradients | None = None
        self._sum = torch.zeros((), device=device)
        self._private: PrivateGradients | None = None

    def train_privately(
        self, private: PrivateRound, examples: int, steps: int, epochs: int
    ) -> Iterator[tuple[int, Tensor]]:
        """From now on gradients are noised; returns the samples to take, as :func:`batches` does."""
        from shared.training.private import NoiseStream, PrivateGradients, draw_samples

        if private.spending.steps != steps or self.dtype is not None:
            raise ValueError(f"{private.spending} is not of {steps} steps in float32")
        stream = NoiseStream(private.key)
        self._private = PrivateGradients(
            self.state.model, self.parameters, self.loss, private, stream, examples
        )
        return draw_samples(stream, private.spending, examples, -(-steps // max(1, epochs)))

    def step(self, examples: Examples, positions: Tensor, augmentation: torch.Generator) -> None:
        """One batch: the examples at ``positions``, wherever they are resident."""
        batch = examples.subset(positions).to(self.device)
        inputs = self.task.prepare(batch.inputs, augmentation)
        self.optimizer.zero_grad(set_to_none=True)
        if self._private is not None:
            lost = self._private.fill(inputs, batch.targets)
            self._sum += 0 if lost is None else lost
        elif not self._fill_at_once(inputs, batch.targets):
            torch.autograd.backward(self.scaler.scale(self._objective(inputs, batch.targets)))
            if isinstance(self.optimizer, torch.optim.Optimizer):
                self.scaler.unscale_(self.optimizer)
        self.algorithm.on_gradient(self.state)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        if self._apply():
            self.state.steps += 1
            self.algorithm.on_step(self.state)

    def look(self, step: int, where: str) -> None:
        """Fetch the mean loss of the ``step`` batches so far, and give up if it is no number."""
        self.mean_loss = self._sum.item() / step
        if not math.isfinite(self.mean_loss):
            raise Diverged(f"The loss is {self.mean_loss} at {where}.")

    def _fill_at_once(self, inputs: Tensor, targets: Tensor) -> bool:
        """Without autograd, where that is possible."""
        loss = None if self.gradients is None else self.gradients(inputs, targets)
        if loss is not None:
            self._sum += loss
        return loss is not None

    def _objective(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            outputs = self.state.model(inputs)
            loss = self.loss(outputs, targets)
            extra = self.algorithm.extra_loss(self.state, Batch(inputs, targets, outputs))
        self._sum += loss.detach()
        return loss if extra is None else loss + extra

    def _apply(self) -> bool:
        """The optimizer's step; False where float16 gradients overflowed and the scaler left it out."""
        if isinstance(self.optimizer, SGD):
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before
