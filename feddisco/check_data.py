"""``feddisco check-data``: what a site's data are to a run, before it has a join code. Nothing is sent."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from shared.config import Metric, RunConfig
from shared.data import fingerprint_of, opened
from shared.data.images import Survey, is_image, survey_images
from shared.discrepancy import discrepancy
from shared.left_out import printable
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration
from shared.schemas import Role
from shared.tasks import load_task
from shared.tasks.base import Split, Task, ask_nearest
from shared.tasks.images import ImageTask, other_folders
from shared.tasks.loading import load_examples
from shared.texts import format_count
from shared.weightings.base import Need
from shared.wire.tensors import manifest_of
from worker.disclosure import told_size
from worker.policy import allows
from worker.policy.check import Asked, find_faults, find_told
from worker.policy.document import format_value, load_policy

if TYPE_CHECKING:
    from shared.data import Examples
    from shared.schemas import TensorSpec
    from worker.faults import LocalFault
    from worker.policy import Policy, SitePolicy
    from worker.settings import WorkerSettings

__all__ = ["check_data"]

SPLITS: tuple[Split, ...] = ("train", "test")
_SHOWN = 10


def check_data(
    settings: WorkerSettings,
    config: RunConfig | None,
    classes: tuple[str, ...] | None,
    say: Callable[[str], None],
) -> bool:
    """Say all that a run would meet in the data; whether it could take part.

    ``config`` is the run's, if there is one yet; ``classes`` its contract where it has none.

    Raises:
        InvalidConfiguration: the task or its options are wrong, or there are no data at all.
    """
    site = load_policy(settings)
    if is_own(settings.task) and not allows(site.own.tasks, settings.task):
        raise InvalidConfiguration(
            f"the site's policy does not allow the task {settings.task}, so it is not imported "
            f"({site.where('tasks')} has tasks: {format_value(site.own.tasks)})."
        )
    task = _make_task(settings, config, classes, site, say)
    where = "without --data" if settings.data is None else f"in {settings.data}"
    say(f"Task {settings.task} {where}, fingerprint {fingerprint_of(settings.data)[:16] or 'none'}")
    _say_folders(task, settings.data, say)
    found: dict[Split, Examples] = {}
    faults: dict[Split, InvalidConfiguration] = {}
    for split in SPLITS:
        try:
            found[split] = load_examples(task, split, settings.data, 0 if config is None else config.seed)
        except InvalidConfiguration as refused:
            faults[split] = refused
    _say_images(task, settings.data, say)
    policy = site.for_data(dealt=config is not None and config.partition is not None)
    is_one = len(found) == len(SPLITS) and _are_equal(*found.values())
    for split, examples in found.items():
        if split == "train" or not is_one:
            _Report(task, split, examples, config, policy, say).tell()
    if is_one:
        say("\ntest: the same examples, since there are no folders train and test.")
    _say_doubles({"train": found["train"]} if is_one else found, say)
    for split, fault in faults.items():
        if split == "train" or str(fault) != str(faults.get("train")):
            state = "cannot be used" if _is_refusal(fault) else f"none here; {_WITHOUT[split]} need none"
            say(f"\n{split}: {state}. {fault}")
    is_allowed = config is None or not found or _say_policy(config, task, site, _find_role(found), say)
    _say_what_leaves(found if is_allowed else {}, config, policy, say)
    return bool(found) and is_allowed and not any(_is_refusal(fault) for fault in faults.values())


_WITHOUT = {"train": "evaluators", "test": "trainers"}


def _are_equal(train: Examples, test: Examples) -> bool:
    """One folder for both: a site with one split leaves out the level ``train``/``test``."""
    return torch.equal(train.inputs, test.inputs) and torch.equal(train.targets, test.targets)


def _is_refusal(fault: InvalidConfiguration) -> bool:
    """A split that is not there is fine: trainers need no test set, evaluators no training set."""
    return "absent" not in fault.extra


def _make_task(
    settings: WorkerSettings,
    config: RunConfig | None,
    classes: tuple[str, ...] | None,
    site: SitePolicy,
    say: Callable[[str], None],
) -> Task:
    options: Mapping[str, Any] = {**(config.task_options if config else {}), **settings.task_options}
    contract = classes or (config.classes if config else None)
    if settings.task == "imagefolder" and contract is None and "classes" not in options:
        contract = _folders(settings.data)
        say(f"No classes are given (--classes, --run): taking the folders {', '.join(contract)}.")
    task = load_task(settings.task, options, contract)
    task.on_broken, task.labels = site.own.on_broken, site.own.labels
    return task


def _folders(source: Path | None) -> tuple[str, ...]:
    with opened(source, "images as train/<class>/... or <class>/...", "skip") as archive:
        names = sorted({name.split("/")[-2] for name in archive.names if is_image(name) and "/" in name})
    if len(names) < 2:
        raise InvalidConfiguration(
            f"data: found the class folders {names} in {source}, a run has two classes or more.",
            hint="Name the run's classes: --classes melanoma,nevus",
        )
    return tuple(names)


def _say_folders(task: Task, source: Path | None, say: Callable[[str], None]) -> None:
    """Every folder that is no class, not only the first, and labels that nothing is called by."""
    if not isinstance(task, ImageTask) or source is None:
        return
    with opened(source, "images", "skip") as archive:
        for split in SPLITS:
            for name, number in other_folders(archive, split, task).items():
                say(
                    f"{split}: the folder {printable(name)!r} ({number} images) is none of the classes. "
                    f"{task.ask_class(name)}".rstrip()
                )
        parts = {part for name in archive.names for part in name.split("/")[:-1]}
    for name in sorted(set(task.labels) - parts):
        say(f"labels: nothing here is called {name!r}. {ask_nearest(name, parts)}".rstrip())


def _say_images(task: Task, source: Path | None, say: Callable[[str], None]) -> None:
    if not isinstance(task, ImageTask) or source is None:
        return
    with opened(source, "images", "skip") as archive:
        names = [name for name in archive.names if is_image(name)]
        if names:
            _say_survey(survey_images(archive, names), task, say)


def _say_survey(survey: Survey, task: ImageTask, say: Callable[[str], None]) -> None:
    say(f"\nImages: {_counted(survey.kinds)}")
    say(f"Width x height: {_counted(Counter({f'{w} x {h}': n for (w, h), n in survey.sizes.items()}))}")
    if survey.deepest is not None:
        low, high = survey.deepest
        say(f"Grey values of more than 8 bits go from {low:g} to {high:g}.")
        if task.window is None and low >= 0 and high < 32768:
            bits = max(1, int(high).bit_length())
            option = f"--task-options '{{\"bits\": {bits}}}'"
            say(f"They fit in {bits} bits: if that is the device's depth, say so with {option}.")


def _counted(counts: Mapping[str, int]) -> str:
    """The most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(ordered) - _SHOWN} kinds more" if len(ordered) > _SHOWN else ""
    return ", ".join(f"{number} {name}" for name, number in ordered[:_SHOWN]) + more


@dataclass(frozen=True)
class _Report:
    """One split."""

    task: Task
    split: Split
    examples: Examples
    config: RunConfig | None
    policy: Policy
    say: Callable[[str], None]

    def tell(self) -> None:
        say, number = self.say, len(self.examples)
        say(f"\n{self.split}: {format_count(number, 'example')}")
        counts = self._counts()
        width = max(len(name) for name in self.task.classes)
        for name, count in zip(self.task.classes, counts, strict=True):
            say(f"  {name:{width}} {count:>8}")
        for sentence in self.examples.left_out.sentences():
            say(f"  {sentence}")
        if self.split == "train" and number:
            for line in self._distances(counts):
                say(f"  {line}")

    def _counts(self) -> list[int]:
        categories = self.task.categories(self.examples.targets).tolist()
        found = Counter(categories)
        return [found[index] for index in range(len(self.task.classes))]

    def _distances(self, counts: list[int]) -> Iterator[str]:
        asked = self.config.weighting.discrepancy if self.config is not None else None
        if asked is not None and asked.target == "global":
            yield "discrepancy d: known once the label counts of all sites have been summed (target global)"
            return
        if asked is not None and is_own(asked.metric) and not self._may_measure_by(asked.metric):
            yield f"discrepancy d: not computed, since the site's policy does not allow {asked.metric}"
            return
        target = "uniform" if asked is None else asked.resolve(None)
        for metric in get_args(Metric) if asked is None else (asked.metric,):
            yield f"discrepancy d ({metric}, target {target}): {discrepancy(counts, target, metric):.6g}"

    def _may_measure_by(self, metric: str) -> bool:
        """Before somebody's own code is imported."""
        return metric in self.policy.metrics and allows(self.policy.parts, metric)


def _say_doubles(found: Mapping[Split, Examples], say: Callable[[str], None]) -> None:
    """Examples whose inputs are equal to the last bit once they are read."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for split, examples in found.items():
        for row, target in zip(examples.inputs.flatten(1).numpy(), examples.targets.tolist(), strict=True):
            places.setdefault(hashlib.sha256(row.tobytes()).digest(), []).append((split, target))
    doubles = [place for place in places.values() if len(place) > 1]
    kinds: dict[Literal["within", "classes", "splits"], int] = {
        "within": sum(len(place) - len({split for split, _ in place}) for place in doubles),
        "classes": sum(len({target for _, target in place}) > 1 for place in doubles),
        "splits": sum(len({split for split, _ in place}) > 1 for place in doubles),
    }
    say(
        f"\nDoubles: {kinds['within']} within a split, {kinds['splits']} in train and test; "
        f"{kinds['classes']} of all of them under two labels."
        if doubles
        else "\nDoubles: none."
    )


def _find_role(found: Mapping[Split, Examples]) -> Role:
    """With training data a site may train."""
    return Role.TRAINER if "train" in found else Role.EVALUATOR


def _say_policy(
    config: RunConfig, task: Task, site: SitePolicy, role: Role, say: Callable[[str], None]
) -> bool:
    """What of the site's policy speaks against the run; whether nothing does."""

    def find(manifest: Sequence[TensorSpec]) -> list[LocalFault]:
        asked = Asked(config, len(task.classes), manifest)
        return [*find_faults(asked, site, role, dealt=config.partition is not None)]

    # what the policy forbids is not built
    faults = find(()) or find(manifest_of(task.build_model(config.model, config.seed)))
    say("\nThe site's policy allows the run." if not faults else "\nThe run would be declined:")
    for fault in faults:
        say(f"  {fault}")
    return not faults


def _say_what_leaves(
    found: Mapping[Split, Examples], config: RunConfig | None, policy: Policy, say: Callable[[str], None]
) -> None:
    own = found.get("train") or found.get("test")
    if own is None:
        say("\nNothing would leave this site but that it declines, and why in general.")
        return
    say(
        f"\nWhat would leave this site: {', '.join(_list_leaving(own, _find_role(found), config, policy))}. "
        "Not: examples or their names. See docs/privacy.md."
    )


def _list_leaving(examples: Examples, role: Role, config: RunConfig | None, policy: Policy) -> Iterator[str]:
    """By the rows of the table in docs/privacy.md."""
    yield "the kind of device"
    is_secure = config is not None and config.secure is not None
    if role is Role.EVALUATOR or not is_secure:
        about = " to two significant digits" if policy.sizes == "rounded" else ""
        yield f"the number of examples{about} ({told_size(len(examples), policy.sizes)})"
        left = ", ".join(f"{why} {number}" for why, number in examples.left_out.counts().items()) or "none"
        yield f"the numbers left out ({left})"
    if role is Role.EVALUATOR:
        yield "the scores of each model"
    elif is_secure:
        yield _describe_sums(config)
    else:
        if policy.disclosure != "none" and (config is None or config.weighting.discrepancy is not None):
            noise = f"noised with epsilon {policy.epsilon:g}" if policy.disclosure == "noised" else "exact"
            yield f"the discrepancy d ({noise})"
        loss = "" if config is not None and config.dp is not None else ", loss"
        yield f"in each round the trained model, its steps{loss} and duration"
    if config is not None:
        yield from _list_where_a_run_asks(role, config, policy)
    yield "why a run is declined or a round fails, in a sentence"


def _describe_sums(config: RunConfig | None) -> str:
    asked = config.weighting.discrepancy if config is not None else None
    enter = ["the number of examples"]
    if asked is not None:
        enter.append("the label counts" if asked.target == "global" else "the discrepancy")
    return (
        "in each round the trained model, masked, so that the coordinator learns the sum over all sites; "
        f"{' and '.join(enter)} enter that sum"
    )


def _list_where_a_run_asks(role: Role, config: RunConfig, policy: Policy) -> Iterator[str]:
    """What leaves only in runs with certain parts; the policy allows them, or nothing leaves."""
    if role is Role.EVALUATOR:
        if config.assistant is not None and policy.assistant:
            yield (
                f"if this site is the assistant ({config.assistant.client}), what it makes of its training "
                "data in each round"
            )
        return
    if {Need.START_LOSS, Need.END_LOSS} & set(config.weighting.needs):
        yield "in each round the losses of the received and of the sent model on the training examples"
    if find_told(config) != "nothing":
        yield (
            f"in measuring rounds sums by class of features ({config.algorithm.name}): label counts, means"
        )
    if config.calibration is not None:
        yield (
            "in the last round sums and products of features by class (calibration), which tell label counts"
        )
    if config.average_every > 1:
        yield "between averages the trained model, as it is, to one other site"
    if config.assistant is not None:
        yield f"the trained model once more, to the run's assistant ({config.assistant.client})"
    if config.dp is not None and policy.tell_epsilon:
        yield "in each round epsilon of private training so far, which tells the number of examples"
