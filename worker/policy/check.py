"""Whether a run is inside the site's policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from shared.algorithms import load_algorithm
from shared.algorithms.base import Told
from shared.config import RunConfig
from shared.faults import Fault, FaultCode
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration
from shared.schemas import Role, RunView, TensorSpec
from shared.secure.ring import SMALLEST_SUM
from shared.tasks import base_of
from shared.weightings import load_weighting
from worker.disclosure import NotDisclosed, Rule, check_rule
from worker.faults import LocalFault
from worker.policy import Policy, SitePolicy, allows
from worker.policy.document import format_value

__all__ = ["Asked", "check_assisting", "check_run", "find_faults", "find_rule", "find_told"]

_LIMITS: Final = {
    "most_parameters": FaultCode.MODEL_TOO_LARGE,
    "most_rounds": FaultCode.TOO_MANY_ROUNDS,
    "most_epochs": FaultCode.TOO_MANY_EPOCHS,
    "most_steps": FaultCode.TOO_MANY_STEPS,
    "largest_batch": FaultCode.BATCH_TOO_LARGE,
    "fewest_trainers": FaultCode.TOO_FEW_TRAINERS,
    "fewest_updates": FaultCode.TOO_FEW_UPDATES,
    "smallest_sum": FaultCode.TOO_FEW_IN_SUM,
}
_GRADES: Final = ("nothing", "means", "covariances")
_DISCLOSURE: Final = {
    FaultCode.NOTHING_TOLD: "disclosure",
    FaultCode.OTHER_METRIC: "metrics",
    FaultCode.TARGET_NOT_ALLOWED: "targets",
    FaultCode.EMPTY_CLASS: "disclosure",
}


@dataclass(frozen=True)
class _Refusal:
    """The policy's key that speaks against a run, what of the run it is, and what the coordinator is told."""

    key: str
    asked: str
    fault: Fault


@dataclass(frozen=True)
class Asked:
    """What a policy looks at in a run. ``classes``: how many; ``manifest``: empty if not known."""

    config: RunConfig
    classes: int
    manifest: Sequence[TensorSpec]


def check_run(view: RunView, site: SitePolicy, role: Role, *, dealt: bool) -> None:
    """Raise :class:`worker.faults.LocalFault` with the first thing in which the run is outside the policy."""
    asked = Asked(view.config, len(view.classes), view.manifest)
    for fault in find_faults(asked, site, role, dealt=dealt):
        raise fault


def find_faults(asked: Asked, site: SitePolicy, role: Role, *, dealt: bool) -> Iterator[LocalFault]:
    """All in which the run is outside the policy."""
    policy = site.for_data(dealt=dealt)
    for refusal in _find_refusals(asked, policy, role, dealt):
        key = refusal.key
        stated = format_value(policy.model_dump(mode="json")[key])
        detail = f"({refusal.asked}; {site.where(key)} has {key}: {stated})"
        yield LocalFault(refusal.fault, f"{refusal.fault.sentence} {detail}")


def check_assisting(config: RunConfig, site: SitePolicy, *, dealt: bool) -> None:
    """Raise :class:`worker.faults.LocalFault` if this site is not to do the step that the run asks of it.

    It is a training on the data here, so it is bound by what bounds trainings.
    """
    policy = site.for_data(dealt=dealt)
    for key, asked in _find_beyond_assisting(config, policy):
        stated = format_value(policy.model_dump(mode="json")[key])
        detail = f"{asked}; {site.where(key)} has {key}: {stated}"
        raise LocalFault(
            Fault(FaultCode.NOT_ASSISTANT), f"the run asks this site to work as its assistant ({detail})"
        )


def _find_beyond_assisting(config: RunConfig, policy: Policy) -> Iterator[tuple[str, str]]:
    """The policy's keys that speak against the step, and what of it each is about."""
    if not policy.assistant:
        yield "assistant", config.name
    if policy.most_epsilon is not None:
        yield "most_epsilon", "a step without noise"
    asked: dict[str, int]
    if config.distillation is not None:
        asked = {"most_steps": config.distillation.steps, "largest_batch": config.distillation.batch_size}
    else:
        learning = load_weighting(config.weighting)
        asked = {"most_epochs": getattr(learning, "epochs", 0), "largest_batch": learning.proxy_size[1]}
    for key, number in asked.items():
        limit: int | None = getattr(policy, key)
        if limit is not None and number > limit:
            yield key, f"{number:,}"


def find_rule(policy: Policy, *, dealt: bool) -> Rule:
    """What the policy says of the discrepancy."""
    return Rule(policy.disclosure, policy.epsilon, policy.metrics, policy.targets, dealt)


def _find_refusals(asked: Asked, policy: Policy, role: Role, dealt: bool) -> Iterator[_Refusal]:
    config = asked.config
    if not any(fnmatchcase(config.name, pattern) for pattern in policy.runs):
        yield _Refusal("runs", config.name, Fault(FaultCode.RUN_NOT_ALLOWED))
    if policy.sums_only and config.secure is None:
        yield _Refusal("sums_only", "updates in clear", Fault(FaultCode.SUMS_ONLY))
    if not allows(policy.tasks, config.task):
        yield _Refusal("tasks", config.task, Fault(FaultCode.TASK_NOT_ALLOWED))
    algorithm, model = config.algorithm.name, config.model or base_of(config) or "default"
    if not allows(policy.algorithms, algorithm):
        yield _Refusal("algorithms", algorithm, Fault(FaultCode.ALGORITHM_NOT_ALLOWED))
    if not allows(policy.models, model):
        yield _Refusal("models", model, Fault(FaultCode.MODEL_NOT_ALLOWED))
    for path in _list_parts(config):
        if not allows(policy.parts, path):
            yield _Refusal("parts", path, Fault(FaultCode.PART_NOT_ALLOWED))
    size = sum(math.prod(tensor.shape) for tensor in asked.manifest)
    yield from _find_excess("most_parameters", size, policy)
    yield from _find_excess("most_rounds", config.rounds, policy)
    if role is Role.TRAINER:
        if config.assistant is not None and not policy.assistant:
            yield _Refusal("assistant", config.assistant.client, Fault(FaultCode.ASSISTANT_NOT_ALLOWED))
        yield from _find_training_refusals(config, policy)
        yield from _find_disclosure_refusals(asked, policy, dealt)
        yield from _find_features_refusals(config, policy)
        if config.average_every > 1 and not policy.models_handed_on:
            every = f"average_every: {config.average_every}"
            yield _Refusal("models_handed_on", every, Fault(FaultCode.MODELS_HANDED_ON))


def _list_parts(config: RunConfig) -> list[str]:
    """Import paths of the run's optimizer, schedule, loss, metric of the discrepancy and partition."""
    asked = config.weighting.discrepancy
    named = (
        None if asked is None else asked.metric,
        None if config.partition is None else config.partition.kind,
    )
    return [*config.local.own_parts.values(), *(path for path in named if path is not None and is_own(path))]


def _find_training_refusals(config: RunConfig, policy: Policy) -> Iterator[_Refusal]:
    if policy.most_epsilon is not None and config.dp is None:
        yield _Refusal("most_epsilon", "training without differential privacy", Fault(FaultCode.NOT_PRIVATE))
    local = config.local
    steps = local.steps_range[1] if local.steps_range is not None else local.steps
    yield from _find_excess("most_epochs", local.epochs or 0, policy)
    yield from _find_excess("most_steps", steps or 0, policy)
    yield from _find_excess("largest_batch", local.batch_size, policy)
    yield from _find_excess("fewest_trainers", config.clients_expected, policy)
    needed = config.updates_needed
    if config.secure is not None:
        needed = max(needed, SMALLEST_SUM)
        yield from _find_excess("smallest_sum", config.clients_expected, policy)
    yield from _find_excess("fewest_updates", needed, policy)


def _find_features_refusals(config: RunConfig, policy: Policy) -> Iterator[_Refusal]:
    told = "covariances" if config.calibration is not None else find_told(config)
    if _GRADES.index(told) > _GRADES.index(policy.features):
        yield _Refusal("features", f"{told} of features", Fault(FaultCode.FEATURES_NOT_TOLD))


def find_told(config: RunConfig) -> Told:
    """Of built-in algorithms: what one's own sends is for `algorithms` to decide."""
    if ":" in config.algorithm.name:
        return "nothing"
    try:
        return load_algorithm(config.algorithm).tells
    except InvalidConfiguration:  # of another version: it is said when the run is built
        return "nothing"


def _find_excess(key: str, asked: int, policy: Policy) -> Iterator[_Refusal]:
    allowed: int | None = getattr(policy, key)
    if allowed is None or asked == allowed or (asked > allowed) == key.startswith(("fewest", "smallest")):
        return
    yield _Refusal(key, str(asked), Fault(_LIMITS[key], counts={"asked": asked, "allowed": allowed}))


def _find_disclosure_refusals(run: Asked, policy: Policy, dealt: bool) -> Iterator[_Refusal]:
    asked = run.config.weighting.discrepancy
    if asked is None:
        return
    if asked.target == "global" and (run.config.secure is None or "global" not in policy.targets):
        yield _Refusal("targets", "target global", Fault(FaultCode.TARGET_NOT_ALLOWED))
        return
    if run.config.secure is not None:  # only a sum is told
        return
    target = asked.resolve(None)
    try:
        check_rule(asked.metric, target, run.classes, find_rule(policy, dealt=dealt))
    except NotDisclosed as refused:
        key = _DISCLOSURE[refused.code]
        yield _Refusal(key, f"metric {asked.metric}, target {asked.target}", Fault(refused.code))
