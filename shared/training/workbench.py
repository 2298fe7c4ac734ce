"""A run as one process trains it: task, algorithm, one model to work on, the data and whose they are.

A worker and the simulation train by this class alone, so that a client's round gives the same bits in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from shared import wire
from shared.algorithms import check_optimizer
from shared.calibrated import calibrate_last, check_calibration, try_measuring
from shared.data.partition import common_test, deal_examples, validation_examples
from shared.device import is_out_of_memory
from shared.metric_names import check_metrics
from shared.problems import InvalidConfiguration
from shared.schemas import Metrics, TensorKind
from shared.seeds import torch_generator
from shared.training import LOCAL_BUFFERS, train
from shared.training.accountant import Spending, check_epsilon, find_epsilon, find_noise
from shared.training.batches import planned_steps
from shared.training.distillation import Distiller
from shared.training.evaluation import EVALUATION_BATCH, evaluate
from shared.training.optimizers import check_local
from shared.training.packed import pack_result
from shared.training.private_checks import check_private, check_private_model
from shared.training.proxy import ProxySet
from shared.update_forms import find_form
from shared.weightings.base import Need
from shared.wire.packing import RESIDUAL
from shared.wire.tensors import load_into, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from shared.algorithms.base import Algorithm, Groups, Tensors
    from shared.config import Partition, RunConfig
    from shared.data import Examples
    from shared.data.partition import Share
    from shared.tasks.base import Split, Task
    from shared.training import Gradients, LocalResult, Precision, TrainProgress
    from shared.training.private import PrivateRound

__all__ = ["ClientTask", "Inputs", "Workbench"]

_ROUNDING = 1 + 1e-9  # of sums of the same terms in another order


@dataclass(frozen=True)
class ClientTask:
    """One client's part in one round, and the files that it starts from.

    ``took_part`` says whether an update of this client was aggregated in an earlier round, ``kept`` is what
    the client kept of the newest of them (None: nothing, or it was lost).
    """

    round: int
    index: int
    relative_size: float
    took_part: bool
    model: Path
    broadcast: Path | None = None
    kept: Path | None = None


@dataclass(frozen=True)
class Inputs:
    """What the files of a task hold: the model, the algorithm's groups received, and those kept."""

    start: Tensors
    received: Groups
    kept: Groups


class Workbench:
    """Trains and scores; the model's values are overwritten at every use.

    ``load`` gives a split of the data, whole; ``partition`` says how the training set is dealt to clients
    (None: all of it is this process's own). ``device`` is where models and examples are in use, ``gradients``
    (None: autograd) what makes those of a batch where it can.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        algorithm: Algorithm[Any],
        load: Callable[[Split], Examples],
        partition: Partition | None,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        self.config = config
        self.task = task
        self.algorithm = algorithm
        self.partition = partition
        self.device = device
        model = task.build_model(config.model, config.seed)
        self.manifest = manifest_of(model)
        self.model: nn.Module = model.to(device)
        check_metrics(config.metrics, task.classes, task.outputs)
        check_local(task, config.local)
        check_optimizer(config, algorithm)
        check_private(config, algorithm)
        check_calibration(config, self.manifest, task.classes)
        check_private_model(config, model)
        if config.dp is not None and precision != "float32":
            raise InvalidConfiguration(
                f"dp: trains in float32, not in {precision}", hint="Leave out --precision at this site."
            )
        self._form = find_form(config, self.manifest)
        self._load = load
        self._precision = precision
        self._parts: dict[int | None, Examples] = {}
        self.gradients: Gradients | None = None
        self._has_tried_measuring = config.calibration is None

    @property
    def model_bytes(self) -> int:
        """The most that a file of the run's model can have."""
        return wire.largest_bytes(wire.model_layout(self.manifest))

    @property
    def broadcast_bytes(self) -> int:
        """The most that a file of what the algorithm sends beside the model can have."""
        own = self.algorithm.own_specs(self.manifest)
        return wire.largest_bytes(wire.groups_layout(self.manifest, self.algorithm.downloads, own))

    # ------------------------------------------------------------ data

    def forget_examples(self) -> None:
        """Have them loaded again when they are next asked for."""
        self._parts.clear()
        for cached in ("_shares", "test_examples"):
            self.__dict__.pop(cached, None)

    @functools.cached_property
    def _shares(self) -> list[Share]:
        if self.partition is None:
            return []
        return deal_examples(self.partition, self.task, self._load("train"), self.config.seed)

    @property
    def clients(self) -> int:
        """How many clients the training set is dealt to; 0 without a partition."""
        return len(self._shares)

    def training_examples(self, index: int | None) -> Examples:
        """The examples that client ``index`` trains on; without a partition or an index, all.

        Raises:
            InvalidConfiguration: the partition has no such client.
        """
        part = None if self.partition is None else index
        if part not in self._parts:
            whole = self._load("train")
            own = whole if part is None else whole.subset(self._share(part).train)
            self._parts[part] = own.to(self.device)
        return self._parts[part]

    def own_test_examples(self, index: int) -> Examples:
        """What ``partition.held_out`` keeps of the client's examples for a test of its own (or nothing)."""
        return self._load("train").subset(self._share(index).test).to(self.device)

    def _share(self, index: int) -> Share:
        if not 0 <= index < self.clients:
            raise InvalidConfiguration(
                f"index {index} is outside a partition for {self.clients} clients.",
                hint="Indexes count from 0; start no more workers than the partition has parts.",
            )
        return self._shares[index]

    @functools.cached_property
    def test_examples(self) -> Examples:
        """The common test set, thinned as the run's partition says."""
        spec = self.partition or self.config.partition
        return common_test(spec, self.task, self._load("test")).to(self.device)

    def validation_examples(self) -> Examples | None:
        """What ``partition.validation`` keeps of the training set, dealt to nobody; None if it is nothing."""
        if self.partition is None or not self.partition.validation:
            return None
        whole = self._load("train")
        return validation_examples(self.partition, self.task, whole, self.config.seed).to(self.device)

    def spare_examples(self) -> Examples | None:
        """What no client of the run trains on, and this process has: what a partition leaves over.

        Without a partition, all training data here: those of an evaluator.
        """
        if self.partition is not None:
            return self.validation_examples()
        own = self.training_examples(None)
        return own if len(own) else None

    def proxy_examples(self, number: int, batch_size: int) -> ProxySet | None:
        """So many of :meth:`spare_examples`, drawn from the run's seed; None if there are none."""
        held = self.spare_examples()
        if held is None:
            return None
        order = torch.randperm(len(held), generator=torch_generator(self.config.seed, "proxy"))
        return ProxySet(self.task, self.model, held.subset(order[:number]), batch_size)

    def make_distiller(self) -> Distiller | None:
        """For the run's ``distillation``, on inputs of :meth:`spare_examples`; None without any."""
        asked, held = self.config.distillation, self.spare_examples()
        if asked is None or held is None:
            return None
        order = torch.randperm(len(held), generator=torch_generator(self.config.seed, "proxy"))
        inputs = held.inputs.index_select(0, order[: asked.examples].to(held.inputs.device))
        return Distiller(self.task, self.model, inputs, asked, seed=self.config.seed)

    def class_counts(self, index: int | None) -> list[float]:
        """The client's training examples of each class."""
        classes = self.task.categories(self.training_examples(index).targets).cpu()
        return torch.bincount(classes, minlength=len(self.task.classes)).double().tolist()

    # ------------------------------------------------------------ training

    def train(
        self,
        task: ClientTask,
        *,
        clock: Callable[[], float],
        on_progress: Callable[[TrainProgress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        private: PrivateRound | None = None,
    ) -> LocalResult:
        """Carry out the task. Raises what :func:`shared.training.train` and reading the files raise.

        ``private`` is of :meth:`make_private` if the run has ``dp``, and otherwise None.
        """
        if (private is None) is not (self.config.dp is None):
            raise ValueError("private training without its noise, or the other way round")
        needs = self.config.weighting.needs
        self._try_measuring(task.index)
        with self._inputs(task) as inputs:
            if Need.START_LOSS in needs:
                load_into(self.model, inputs.start)
            start_loss = self._own_loss(task.index) if Need.START_LOSS in needs else None
            result = train(
                task=self.task,
                model=self.model,
                algorithm=calibrate_last(self.algorithm, self.config, task.round),
                examples=self.training_examples(task.index),
                local=self.config.local.in_round(task.round, self.config.rounds),
                start=inputs.start,
                received=inputs.received,
                kept=inputs.kept,
                first_time=self._is_first_time(task),
                relative_size=task.relative_size,
                seed=self.config.seed,
                round=task.round,
                index=task.index,
                device=self.device,
                clock=clock,
                precision=self._precision,
                buffers=self.config.buffers,
                on_progress=on_progress,
                should_stop=should_stop,
                private=private,
                gradients=self.gradients,
            )
            if self._form is not None and not self.config.calibrates(task.round):
                result = pack_result(result, inputs.start, inputs.kept, self._form)
        end_loss = self._own_loss(task.index) if Need.END_LOSS in needs else None
        return replace(result, start_loss=start_loss, end_loss=end_loss)

    def _try_measuring(self, index: int) -> None:
        """Once, and by one example: what the last round would find out is said in the first."""
        if self._has_tried_measuring or self.config.calibration is None:
            return
        one = self.training_examples(index).subset(torch.arange(1)).to(self.device)
        inputs = self.task.prepare(one.inputs, None)
        try_measuring(self.config.calibration, self.model, inputs, one.targets)
        self._has_tried_measuring = True

    # ------------------------------------------------------------ differential privacy

    def make_private(
        self, task: ClientTask, key: bytes, spent: Sequence[Spending] = ()
    ) -> PrivateRound | None:
        """What the client's round is trained with if the run has ``dp``; None if it has none.

        ``spent`` is what the client has trained in this run: where that is more than its rounds so far (a
        round that was begun again), what is left of the run's epsilon has to do with more noise.

        Raises :class:`InvalidConfiguration` if it cannot be had: too few examples, nothing left, no Opacus.
        """
        from shared.training.private import PrivateRound

        dp = self.config.dp
        if dp is None:
            return None
        plan = self.plan_private(task.index, task.round)
        rounds_left = max(0, self.config.rounds - task.round)  # the run may have been made longer
        later = self._most_steps(len(self.training_examples(task.index))) * rounds_left
        left = replace(plan, steps=plan.steps + later)
        if dp.epsilon is not None and find_epsilon((*spent, left), dp.delta) > dp.epsilon * _ROUNDING:
            noise = find_noise(dp.epsilon, dp.delta, left.rate, left.steps, spent)
            plan = replace(plan, noise_multiplier=noise)
        return PrivateRound(plan, dp.clip, key)

    def plan_private(self, index: int | None, round: int | None = None) -> Spending:
        """What one round of the client spends as the run plans it; without ``round``: all of its rounds.

        Raises as :meth:`make_private`, also where epsilon would say nothing.
        """
        dp, examples = self.config.dp, len(self.training_examples(index))
        if dp is None or not examples:
            return Spending(1.0, 0.0, 0)
        if dp.delta * examples >= 1:
            raise InvalidConfiguration(
                f"dp: delta {dp.delta:g} allows to give away one of {examples} examples whole",
                hint="Set dp.delta below one over the number of examples of every site.",
            )
        most = self._most_steps(examples)
        whole = Spending(self._find_noise(examples, most), min(1, self.config.local.batch_size / examples), 0)
        if round is None:
            return replace(whole, steps=most * self.config.rounds)
        steps = planned_steps(self.config.local, examples, self.config.seed, round, index or 0)
        return replace(whole, steps=steps if self.algorithm.trains(round) else 0)

    def _most_steps(self, examples: int) -> int:
        """Of one round."""
        local = self.config.local
        if local.steps_range is not None:
            return local.steps_range[1]
        return planned_steps(local, examples, self.config.seed, 1, 0)

    def _find_noise(self, examples: int, steps: int) -> float:
        """By which all rounds together lose the run's epsilon; or the one that the run states."""
        dp = self.config.dp
        if dp is None:
            raise ValueError("a run without dp")
        rate, all_steps = min(1.0, self.config.local.batch_size / examples), steps * self.config.rounds
        if dp.epsilon is not None:
            return find_noise(dp.epsilon, dp.delta, rate, all_steps) if all_steps else 1.0
        noise = dp.noise_multiplier or 0.0
        check_epsilon(find_epsilon([Spending(noise, rate, all_steps)], dp.delta))
        return noise

    # ------------------------------------------------------------ of the whole data

    def _own_loss(self, index: int) -> float | None:
        """The model's mean loss on the client's training examples, as they are."""
        return self.evaluate(self.training_examples(index)).loss

    def _is_first_time(self, task: ClientTask) -> bool:
        """Whether the client begins anew: nothing of it was aggregated, or what its algorithm keeps is lost.

        An algorithm that keeps nothing has nothing to lose: there it is what the coordinator knows.
        """
        return not task.took_part or (bool(self.algorithm.keeps) and task.kept is None)

    @contextmanager
    def _inputs(self, task: ClientTask) -> Iterator[Inputs]:
        """The files' tensors, mapped for the block; missing groups are left out."""
        kept = task.kept if task.took_part else None
        with ExitStack() as files:
            model = files.enter_context(wire.opened(task.model))
            yield Inputs(
                start={spec.name: model.tensor(wire.MODEL, spec.name) for spec in self.manifest},
                received=self._groups(files, task.broadcast, self.algorithm.downloads),
                kept=self._groups(files, kept, self.algorithm.keeps)
                | self._groups(files, kept, (*self._local_buffers, *self._residual)),
            )

    def _groups(
        self,
        files: ExitStack,
        path: Path | None,
        groups: tuple[str, ...],
    ) -> Groups:
        """Those of the groups that the file holds: a new version of an algorithm may keep more."""
        if path is None or not groups:
            return {}
        file, found = files.enter_context(wire.opened(path)), {}
        for group in groups:
            names = self._names(group)
            if any(file.has(group, name) for name in names):
                found[group] = {name: file.tensor(group, name) for name in names}
        return found

    def _names(self, group: str) -> list[str]:
        if group == LOCAL_BUFFERS:
            return [spec.name for spec in self.manifest if spec.kind is TensorKind.BUFFER]
        return [spec.name for spec in self.algorithm.specs_of(group, self.manifest)]

    @property
    def _residual(self) -> tuple[str, ...]:
        return () if self.config.compression is None else (RESIDUAL,)

    @property
    def _local_buffers(self) -> tuple[str, ...]:
        return (LOCAL_BUFFERS,) if self.config.buffers == "keep-local" else ()

    # ------------------------------------------------------------ scoring

    def load_model(self, path: Path) -> None:
        """Overwrite the model by the one in a file."""
        with wire.opened(path) as file:
            load_into(self.model, {spec.name: file.tensor(wire.MODEL, spec.name) for spec in self.manifest})

    def evaluate(
        self, examples: Examples, batch_size: int = EVALUATION_BATCH, *, metrics: Sequence[str] = ()
    ) -> Metrics:
        """The model's scores on examples, also ``metrics``; in smaller batches where memory runs out."""
        while True:
            try:
                return evaluate(
                    task=self.task,
                    model=self.model,
                    examples=examples,
                    device=self.device,
                    batch_size=batch_size,
                    metrics=metrics,
                )
            except (RuntimeError, MemoryError) as error:
                if batch_size == 1 or not is_out_of_memory(error):
                    raise
                batch_size //= 2
