"""What this site brings to a run: the task, its data, the model built once and used for every round."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from shared.algorithms import load_algorithm
from shared.config import Partition
from shared.faults import Doing, Fault, FaultCode
from shared.left_out import Reason
from shared.problems import DataUnfit, InvalidConfiguration
from shared.schemas import Role, RunView
from shared.tasks import load_task
from worker.disclosure import Disclosures, Question, Rule
from worker.faults import LocalFault, local_faults
from worker.policy.check import check_assisting, check_run, find_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from shared.config import AnyMetric
    from shared.data import Examples
    from shared.discrepancy import Target
    from shared.schemas import TensorSpec
    from shared.tasks.base import LoadCall, Split, Task
    from shared.training.workbench import Workbench
    from worker.policy import Policy, SitePolicy
    from worker.privacy_account import PrivacyAccount
    from worker.settings import WorkerSettings

__all__ = ["LocalRun", "Site", "first_difference"]


@dataclass(frozen=True)
class LocalRun:
    """A run as this site knows it, and what it trains it with."""

    view: RunView
    workbench: Workbench

    @property
    def task(self) -> Task:
        return self.workbench.task


class Site:
    """Loads on first use, keeps until the run is forgotten; decoded images also in the folder ``cache``.

    All that is kept is kept by run. Runs share whole splits, where their tasks would load the same. PyTorch
    is imported when the first run is prepared: a site that waits, or declines, does without.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        policy: SitePolicy,
        cache: Path,
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self._policy = policy
        self._cache = cache
        self.say = say
        self.disclosures = Disclosures(settings.state)
        self._runs: dict[str, LocalRun] = {}
        self._splits: dict[tuple[str, Split], tuple[LoadCall, Examples]] = {}

    @cached_property
    def device(self) -> torch.device:
        """Where it trains. Raises InvalidConfiguration if the device that is asked for is not here."""
        from shared.device import choose, use_threads

        use_threads(self.settings.threads)
        return choose(self.settings.device, self.settings.precision)

    @cached_property
    def account(self) -> PrivacyAccount:
        from worker.privacy_account import PrivacyAccount

        return PrivacyAccount(self.settings.state)

    def forget(self, run: str) -> None:
        """Free what only this run needed."""
        self._runs.pop(run, None)
        self._splits = {key: split for key, split in self._splits.items() if key[0] != run}

    def find_run(self, run: str) -> LocalRun | None:
        return self._runs.get(run)

    @local_faults(Doing.PREPARING)
    def prepare_run(self, view: RunView) -> LocalRun:
        """Prepare for a run: its task with the run's class contract, its algorithm, its model.

        Raises :class:`worker.faults.LocalFault` with the first thing in which this site differs from the run,
        or if the task or memory fails.
        """
        self.forget(view.run)  # nothing of an earlier view, which may have been another run of this name
        self.check_policy(view)  # before anything that the run names is imported
        from shared.tasks.loading import check_labels
        from shared.training.workbench import Workbench

        device = self.device  # with its number of threads, before anything is computed
        policy = self.policy_for(view)
        task = load_task(self.settings.task, self._options(view), view.classes)
        task.cache, task.on_broken, task.labels = self._cache, policy.on_broken, policy.labels
        check_labels(task)
        workbench = Workbench(
            config=view.config,
            task=task,
            algorithm=load_algorithm(view.config.algorithm),
            load=partial(self._load, view, task),
            partition=self.partition_for(view),
            device=device,
            precision=self.settings.precision,
        )
        if difference := first_difference(workbench.manifest, view.manifest):
            raise LocalFault(
                Fault(FaultCode.MODEL_DIFFERS),
                f"the model that task {self.settings.task} builds here is not the run's: {difference}. "
                f"{task.same_model}",
            )
        local = LocalRun(view, workbench)
        self._runs[view.run] = local
        return local

    def check_policy(self, view: RunView) -> None:
        """Raise :class:`worker.faults.LocalFault` if the run is outside this site's policy."""
        check_run(view, self._policy, self.settings.role, dealt=self.is_dealt(view))

    def check_assisting(self, view: RunView) -> None:
        """Raise :class:`worker.faults.LocalFault` if the policy is against being the run's assistant."""
        check_assisting(view.config, self._policy, dealt=self.is_dealt(view))

    def policy_for(self, view: RunView) -> Policy:
        return self._policy.for_data(dealt=self.is_dealt(view))

    def where(self, key: str) -> str:
        """What states a key of the policy, for this site's log."""
        return self._policy.where(key)

    def is_dealt(self, view: RunView) -> bool:
        """Whether the run's partition deals the data: then they are nobody's secret."""
        return self.settings.partition == "run" and view.config.partition is not None

    def _options(self, view: RunView) -> dict[str, Any]:
        return {**view.config.task_options, **self.settings.task_options}

    # ------------------------------------------------------------ data

    def partition_for(self, view: RunView) -> Partition | None:
        """The partition of which this worker takes one part; None: all the data here is its own."""
        return view.config.partition if self.settings.partition == "run" else self.settings.partition

    @local_faults(Doing.LOADING_TRAINING_DATA)
    def training_examples(self, local: LocalRun, index: int | None) -> Examples:
        """This client's own examples; with a partition, part ``index`` of it."""
        return local.workbench.training_examples(index)

    @local_faults(Doing.LOADING_TEST_DATA)
    def test_examples(self, local: LocalRun) -> Examples:
        """The test set as the run's partition, if it has one, has it thinned."""
        return local.workbench.test_examples

    @local_faults(Doing.COUNTING)
    def count_classes(self, local: LocalRun, index: int | None) -> list[int]:
        """Examples of each class of the contract. What of them may be told, worker.disclosure decides."""
        return [int(count) for count in local.workbench.class_counts(index)]

    def rule(self, view: RunView) -> Rule:
        """What this site tells the run about its labels."""
        return find_rule(self.policy_for(view), dealt=self.is_dealt(view))

    def question(self, local: LocalRun, index: int | None, metric: AnyMetric, target: Target) -> Question:
        """The run's question about the labels of this client's examples."""
        counts = self.count_classes(local, index)
        call = self._splits[local.view.run, "train"][0]
        return Question(
            data=self.data_digest(local, index),
            contents=() if self.is_dealt(local.view) else self.data_contents(local, index),
            reading=_digest([call.options.model_dump(mode="json"), sorted(call.classes)]),
            classes=local.view.classes,
            counts=tuple(counts),
            metric=metric,
            target=target,
        )

    def data_digest(self, local: LocalRun, index: int | None) -> str:
        """Of all that this site decides about this client's examples, whatever a run makes of them."""
        self.training_examples(local, index)
        call, part = self._splits[local.view.run, "train"][0], self._part(local, index)
        here = [
            call.kind.__qualname__,
            call.fingerprint,
            call.on_broken,
            call.labels,
            self.settings.task_options,
        ]
        return _digest([*here, part])

    def data_contents(self, local: LocalRun, index: int | None) -> tuple[str, ...]:
        """What :meth:`data_digest` tells apart and these do not: files that were touched or moved, and the
        same files read otherwise. Digests of their names and sizes, and of the inputs that were loaded."""
        from shared.data import list_sizes

        self.training_examples(local, index)
        call, examples = self._splits[local.view.run, "train"]
        of = [call.kind.__qualname__, self._part(local, index)]
        files = list_sizes(self.settings.data)
        named = [_digest(["files", files, *of])] if files else []
        return (*named, _digest(["inputs", examples.digest_inputs(), *of]))

    def _part(self, local: LocalRun, index: int | None) -> list[Any] | None:
        spec = self.partition_for(local.view)
        return None if spec is None else [spec.model_dump(mode="json"), index]

    def _load(self, view: RunView, task: Task, split: Split) -> Examples:
        """The whole split, loaded once a run: data that change meanwhile count from the next run on."""
        from shared.tasks.base import LoadCall

        key = (view.run, split)
        if key not in self._splits:
            seed = view.config.seed
            call = LoadCall.of(task, split, self.settings.data, seed)
            examples = self._find_loaded(call)
            if examples is None:
                examples = self._read(task, split, seed)
                self._tell(view.run, split, examples)
            dealt = split == "train" and self.partition_for(view) is not None
            self._splits[key] = call, examples if dealt else examples.to(self.device)
        return self._splits[key][1]

    def _read(self, task: Task, split: Split, seed: int) -> Examples:
        from shared.data import fingerprint_of
        from shared.tasks.loading import load_examples

        source = self.settings.data
        try:
            return load_examples(task, split, source, seed)
        except InvalidConfiguration as fault:
            needs_data = source is not None or ":" not in self.settings.task
            if needs_data and not isinstance(fault, DataUnfit) and not fingerprint_of(source):
                raise LocalFault(Fault(FaultCode.NO_DATA), str(fault)) from fault  # for any run
            raise

    @property
    def _own_split(self) -> Split:
        return "test" if self.settings.role is Role.EVALUATOR else "train"

    @local_faults(Doing.LOADING_TRAINING_DATA)
    def find_data_mark(self, local: LocalRun) -> str:
        """Tells the files that lie here now from others, and this site's way of reading them."""
        from shared.tasks.base import LoadCall

        return LoadCall.of(local.task, self._own_split, self.settings.data, local.view.config.seed).digest()

    def loaded_data_mark(self, local: LocalRun) -> tuple[str, str]:
        """The same of the files that were loaded for the run, and a digest of the examples in them."""
        call, examples = self._splits[local.view.run, self._own_split]
        return call.digest(), examples.digest()

    def count_loaded(self, local: LocalRun) -> int:
        """How many examples were loaded for the run, whatever part of them this client takes."""
        return len(self._splits[local.view.run, self._own_split][1])

    @local_faults(Doing.LOADING_TRAINING_DATA)
    def reload_data(self, local: LocalRun) -> None:
        """Load again what the run uses, as it is now."""
        run = local.view.run
        local.workbench.forget_examples()
        self._splits = {key: split for key, split in self._splits.items() if key[0] != run}
        self._load(local.view, local.task, self._own_split)

    def own_examples(self, local: LocalRun, index: int | None) -> Examples:
        """What this site brings to the run, by its role."""
        if self.settings.role is Role.EVALUATOR:
            return self.test_examples(local)
        return self.training_examples(local, index)

    def _tell(self, run: str, split: Split, examples: Examples) -> None:
        """What is left out, with names: for this site's log alone."""
        for sentence in examples.left_out.sentences():
            self.say(f"{run}: {split} data: {sentence}")

    def _find_loaded(self, call: LoadCall) -> Examples | None:
        """What an equal call has loaded for a run that still needs it, unless a file could not be read then.

        Rights and disks mend without a trace in the files, and another run need not go without them.
        """
        return next(
            (
                examples
                for made, examples in self._splits.values()
                if made == call and not examples.left_out.has(Reason.UNREADABLE)
            ),
            None,
        )


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def first_difference(here: Sequence[TensorSpec], there: Sequence[TensorSpec]) -> str | None:
    """How two manifests differ, in words; None if they don't."""
    for ours, theirs in zip(here, there, strict=False):
        if ours != theirs:
            return f"{_words(ours)} here, {_words(theirs)} there"
    if len(here) != len(there):
        return f"{len(here)} tensors here, {len(there)} there"
    return None


def _words(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype} {list(spec.shape)} {spec.kind.value}"
