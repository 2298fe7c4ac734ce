"""The local loop: what one client does in one round, in the worker and in the simulation alike.

Every algorithm runs through this loop; what it changes is in its hooks (``shared.algorithms.base``).
Equal arguments give equal bits on one type of machine with one number of threads, whatever was
drawn from the global generators before; those are left as they were found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from shared.algorithms.base import Algorithm, Batch, LocalRound
from shared.batches import batches, epochs_of, planned_steps
from shared.problems import InvalidConfiguration
from shared.reproducible import reproducible
from shared.schemas import TensorKind
from shared.seeds import derive, torch_generator
from shared.sgd import SGD
from shared.tensors import load_into, manifest_of, trainable

if TYPE_CHECKING:
    from shared.algorithms.base import Groups, Tensors
    from shared.config import LocalTraining
    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = [
    "LOCAL_BUFFERS",
    "Diverged",
    "LocalResult",
    "Precision",
    "Stopped",
    "TrainProgress",
    "local_result",
    "local_round",
    "train",
]

Precision = Literal["float32", "bfloat16", "float16"]

LOCAL_BUFFERS = "local_buffers"
"""The group under which a client keeps its running statistics with ``buffers: keep-local``."""

LOSS_EVERY = 32
"""Steps between two looks at the loss: each look waits for the accelerator."""


class Diverged(ArithmeticError):
    """The loss or a parameter is no longer a finite number; ``detail`` says where, ``hint`` what to do."""

    code = "diverged"

    def __init__(self, detail: str) -> None:
        self.detail = detail
        self.hint = "Lower local.learning_rate, or set local.clip_norm."
        super().__init__(f"{detail} {self.hint}")


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


@dataclass(frozen=True)
class LocalResult:
    """What a client sends (``tensors``, by group, on the CPU), what it keeps, and a few numbers.

    ``steps`` are the optimizer steps taken, ``loss`` the mean batch loss over the round (None: no step).
    """

    tensors: Groups
    kept: Groups
    steps: int
    examples: int
    loss: float | None
    seconds: float


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
) -> LocalResult:
    """Train ``model`` (overwritten by ``start``) on ``examples`` for one round.

    ``start`` holds every tensor of the manifest, ``received`` and ``kept`` the algorithm's groups
    (a missing group is zero); with ``keep-local`` buffers, ``kept[LOCAL_BUFFERS]`` and the result's
    ``kept[LOCAL_BUFFERS]`` carry the client's own. ``seed`` is the run's; ``clock`` gives seconds.

    Raises:
        Stopped: ``should_stop`` (asked before every batch) said so.
        Diverged: the loss or a parameter became NaN or infinite.
        InvalidConfiguration: the model has nothing to train.
    """
    began = clock()
    model.to(device)
    state = local_round(
        model, algorithm, local, start, received, kept, first_time, relative_size, buffers=buffers
    )
    loop = _Loop(task, algorithm, state, local, device, precision)
    steps = planned_steps(local, len(examples), seed, round, index)
    epochs = epochs_of(steps, local, len(examples))
    order = batches(local, len(examples), seed, round, index)
    augmentation = torch_generator(seed, "augmentation", round, index)
    with reproducible(derive(seed, "dropout", round, index), device):
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


def local_round(
    model: nn.Module,
    algorithm: Algorithm[Any],
    local: LocalTraining,
    start: Mapping[str, Tensor],
    received: Mapping[str, Mapping[str, Tensor]],
    kept: Mapping[str, Mapping[str, Tensor]],
    first_time: bool,
    relative_size: float,
    *,
    buffers: Literal["average", "keep-local"],
) -> LocalRound:
    """``model``, overwritten by ``start``, ready to be trained; the arguments are those of :func:`train`."""
    load_into(model, {**start, **kept.get(LOCAL_BUFFERS, {})} if buffers == "keep-local" else start)
    model.train()
    parameters = trainable(model)
    if not parameters:
        raise InvalidConfiguration(
            f"model: {type(model).__name__} has no trainable parameter.",
            hint="Leave requires_grad of what is to be trained.",
        )
    return LocalRound(
        model=model,
        parameters=parameters,
        start={name: parameter.detach().clone() for name, parameter in parameters.items()},
        received=_groups(algorithm.downloads, received, parameters),
        kept=_groups(algorithm.keeps, kept, parameters),
        first_time=first_time,
        relative_size=relative_size,
        learning_rate=local.learning_rate,
        momentum=local.momentum,
    )


def local_result(
    algorithm: Algorithm[Any],
    state: LocalRound,
    examples: int,
    loss: float | None,
    seconds: float,
    *,
    buffers: Literal["average", "keep-local"],
) -> LocalResult:
    """What ``finish`` and the trained model give; raises Diverged if a parameter is no number."""
    finish = algorithm.finish(state)
    return LocalResult(
        tensors={"model": _model_tensors(state, buffers)}
        | _declared("uploads", algorithm.uploads, finish.uploads),
        kept=_declared("keeps", algorithm.keeps, finish.kept) | _local_buffers(state.model, buffers),
        steps=state.steps,
        examples=examples,
        loss=loss,
        seconds=seconds,
    )


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
    ) -> None:
        self.task, self.algorithm, self.state, self.device = task, algorithm, state, device
        self.parameters = list(state.parameters.values())
        self.clip_norm = local.clip_norm
        self.dtype = None if precision == "float32" else getattr(torch, precision)
        self.scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and precision == "float16")
        settings = (self.parameters, local.learning_rate, local.momentum)
        self.optimizer = (
            torch.optim.SGD(
                *settings, weight_decay=local.weight_decay, fused=True
            )  # the scaler takes no other
            if self.scaler.is_enabled()
            else SGD(*settings, weight_decay=local.weight_decay)
        )
        self.look_every = 1 if device.type == "cpu" else LOSS_EVERY
        self.mean_loss: float | None = None
        self._sum = torch.zeros((), device=device)

    def step(self, examples: Examples, positions: Tensor, augmentation: torch.Generator) -> None:
        """One batch: the examples at ``positions``, wherever they are resident."""
        batch = examples.subset(positions).to(self.device)
        objective = self._objective(self.task.prepare(batch.inputs, augmentation), batch.targets)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(objective))
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

    def _objective(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            outputs = self.state.model(inputs)
            loss = self.task.loss(outputs, targets)
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


def _groups(
    declared: Sequence[str], given: Mapping[str, Mapping[str, Tensor]], parameters: Mapping[str, nn.Parameter]
) -> Groups:
    """The declared groups on the parameters' device; zeros for a group that is not there yet."""
    groups: Groups = {}
    for group in declared:
        if group in given:
            groups[group] = {name: given[group][name].to(p.device) for name, p in parameters.items()}
        else:
            groups[group] = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    return groups


def _declared(kind: str, declared: Sequence[str], returned: Groups) -> Groups:
    """The groups that an algorithm's ``finish`` returned, on the CPU."""
    if set(returned) != set(declared):
        raise TypeError(f"the algorithm {kind} {sorted(declared)}, but finish() returned {sorted(returned)}")
    return {group: {name: _on_cpu(tensor) for name, tensor in returned[group].items()} for group in declared}


def _model_tensors(state: LocalRound, buffers: Literal["average", "keep-local"]) -> Tensors:
    """What is sent of the model: parameters, and running statistics if they are averaged."""
    tensors = {name: _on_cpu(parameter) for name, parameter in state.parameters.items()}
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise Diverged(f"The tensor {name!r} holds NaN or infinity after training.")
    return tensors | (_running(state.model) if buffers == "average" else {})


def _local_buffers(model: nn.Module, buffers: Literal["average", "keep-local"]) -> Groups:
    running = _running(model) if buffers == "keep-local" else {}
    return {LOCAL_BUFFERS: running} if running else {}


def _running(model: nn.Module) -> Tensors:
    """The floating buffers of the manifest, on the CPU."""
    wanted = {spec.name for spec in manifest_of(model) if spec.kind is TensorKind.BUFFER}
    return {name: _on_cpu(buffer) for name, buffer in model.named_buffers() if name in wanted}


def _on_cpu(tensor: Tensor) -> Tensor:
    """A contiguous copy that later training does not change."""
    return tensor.detach().to("cpu", copy=True).contiguous()
