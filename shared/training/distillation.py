"""A model learns what an ensemble says of examples without labels (:mod:`shared.distillation`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared import wire
from shared.distillation import CHECK_EVERY, Distilled
from shared.problems import InvalidConfiguration
from shared.reproducible import reproducible
from shared.schemas import TensorKind
from shared.seeds import derive, torch_generator
from shared.training.batches import smallest_batch
from shared.training.evaluation import EVALUATION_BATCH
from shared.wire.tensors import load_into, manifest_of, state_of, trainable

if TYPE_CHECKING:
    from shared.algorithms.base import Tensors
    from shared.distillation import Distillation
    from shared.tasks.base import Task

__all__ = ["Distiller", "check_task", "find_divergence"]


def check_task(task: Task) -> None:
    """Raises InvalidConfiguration where the model's outputs are no logits of the classes."""
    from shared.tasks.base import Task as Base

    kind = type(task)
    if (kind.loss, kind.predict) != (Base.loss, Base.predict) or task.outputs != len(task.classes):
        raise InvalidConfiguration(
            f"distillation: the outputs of task {task.name!r} are no logits of its classes",
            hint="Leave it out: what it averages are logits.",
        )


def find_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """``KL(softmax(teacher) || softmax(student))``, mean over the batch; logits, both (B, C)."""
    return functional.kl_div(
        student.log_softmax(dim=1), teacher.log_softmax(dim=1), reduction="batchmean", log_target=True
    )


class Distiller:
    """Distils into ``model``, whose values are overwritten at every use, on ``inputs`` (N, ...).

    The ensemble says what it says of all inputs before the first step: N x C numbers in float32, and one
    client's model at a time, are in memory however many clients there are. Teachers are in evaluation mode.
    The student is in training mode: its running statistics follow the batches, and its dropout the seed.
    """

    def __init__(
        self, task: Task, model: nn.Module, inputs: Tensor, asked: Distillation, *, seed: int
    ) -> None:
        check_task(task)
        held = math.ceil(len(inputs) * asked.held_out)
        self._smallest = smallest_batch(model)
        if len(inputs) - held < self._smallest or asked.batch_size < self._smallest:
            raise InvalidConfiguration(
                f"distillation: {len(inputs) - held} examples in batches of {asked.batch_size} make no batch "
                f"of {self._smallest}, which the model needs",
                hint="Raise partition.validation, distillation.examples or distillation.batch_size.",
            )
        self._task, self._model, self._inputs, self._asked, self._seed = task, model, inputs, asked, seed
        self._train = len(inputs) - held  # the first ones; the rest is only looked at
        self._device = inputs.device

    def distil(
        self, student: Path, start: Path, teachers: Mapping[int, tuple[Path, float]], number: int
    ) -> tuple[Tensors, Distilled]:
        """The student's tensors after distillation, on the CPU, and how it went, in round ``number``.

        ``student`` is the averaged model's file; ``teachers`` are updates of whole models with what each
        counts, by client index; what updates do not hold is as in ``start``, the round's. Integer and frozen
        tensors stay the student's.
        """
        said, left_out = self._ask(start, teachers)
        self._load(student, student)
        first = state_of(self._model)
        if said is None:
            return first, Distilled(0, 0, None, None, left_out)
        with reproducible(derive(self._seed, "distillation", number), self._device):
            chosen, how = self._learn(said, number)
        kinds = {spec.name: spec.kind for spec in manifest_of(self._model)}
        stays = {name for name, kind in kinds.items() if kind in (TensorKind.INTEGER, TensorKind.FROZEN)}
        kept = {name: first[name] if name in stays else value for name, value in chosen.items()}
        return kept, replace(how, left_out=left_out)

    # ------------------------------------------------------------ the ensemble

    def _ask(
        self, start: Path, teachers: Mapping[int, tuple[Path, float]]
    ) -> tuple[Tensor | None, tuple[int, ...]]:
        """The weighted mean of the logits (N, C), None if there is none; and who is not in it."""
        total, counted, left_out = None, 0.0, []
        for index, (path, share) in sorted(teachers.items()):
            self._load(start, path)
            logits = self._score(self._inputs)
            if not bool(torch.isfinite(logits).all()):
                left_out.append(index)
                continue
            total = logits * share if total is None else total.add_(logits, alpha=share)
            counted += share
        if total is None or not bool(torch.isfinite(total).all()):
            return None, tuple(left_out)
        return total / counted if left_out else total, tuple(left_out)

    def _load(self, rest: Path, path: Path) -> None:
        """The model of the file ``path``; what it lacks is taken from ``rest``."""
        with ExitStack() as files:
            own, other = (files.enter_context(wire.opened(each)) for each in (path, rest))
            tensors = {
                spec.name: (own if own.has(wire.MODEL, spec.name) else other).tensor(wire.MODEL, spec.name)
                for spec in manifest_of(self._model)
            }
            load_into(self._model, tensors)

    @torch.no_grad()
    def _score(self, inputs: Tensor) -> Tensor:
        """Of the model as it is, in evaluation mode: (N, C) in float32."""
        self._model.eval()
        parts = torch.split(inputs, EVALUATION_BATCH)
        logits = [self._model(self._task.prepare(part, None)).float() for part in parts]
        return torch.cat(logits)

    # ------------------------------------------------------------ the student

    def _learn(self, said: Tensor, number: int) -> tuple[Tensors, Distilled]:
        asked, parameters = self._asked, list(trainable(self._model).values())
        optimizer = torch.optim.Adam(parameters, asked.learning_rate)
        watch = _Watch(self._look(said), state_of(self._model))
        made = 0
        for made, positions in enumerate(self._batches(number), start=1):
            for group in optimizer.param_groups:
                group["lr"] = asked.learning_rate * (1 + math.cos(math.pi * (made - 1) / asked.steps)) / 2
            self._step(optimizer, parameters, positions, said)
            if watch.before is not None and (made % CHECK_EVERY == 0 or made == asked.steps):
                watch.note(made, self._look(said), self._model)
                if made - watch.chosen >= asked.patience:
                    break
        if watch.before is None:
            return state_of(self._model), Distilled(made, made, None, None)
        return watch.best, Distilled(made, watch.chosen, watch.before, watch.after)

    def _step(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], at: Tensor, said: Tensor
    ) -> None:
        self._model.train()
        optimizer.zero_grad(set_to_none=True)
        outputs = self._model(self._task.prepare(self._inputs.index_select(0, at), None))
        torch.autograd.backward(find_divergence(outputs.float(), said.index_select(0, at)))
        if self._asked.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._asked.clip_norm)
        optimizer.step()

    def _look(self, said: Tensor) -> float | None:
        """The model's divergence from the ensemble on the held-out examples."""
        held = self._inputs[self._train :]
        return float(find_divergence(self._score(held), said[self._train :])) if len(held) else None

    def _batches(self, number: int) -> Iterator[Tensor]:
        """``steps`` batches of positions; each pass is shuffled anew, too small a rest is dropped."""
        left, epoch, size = self._asked.steps, 0, self._asked.batch_size
        while left:
            epoch += 1
            generator = torch_generator(self._seed, "distillation", number, epoch)
            order = torch.randperm(self._train, generator=generator).to(self._device)
            for positions in torch.split(order, size)[:left]:
                if len(positions) >= self._smallest:
                    left -= 1
                    yield positions


class _Watch:
    """The best model so far, by its divergence on the held-out examples; the first is before all steps."""

    def __init__(self, before: float | None, first: Tensors) -> None:
        self.before = before
        self.after = before
        self.chosen = 0
        self.best = first

    def note(self, made: int, divergence: float | None, model: nn.Module) -> None:
        if divergence is None or not math.isfinite(divergence):
            return
        if self.after is None or not divergence >= self.after:  # also where what was before is no number
            self.after, self.chosen, self.best = divergence, made, state_of(model)
