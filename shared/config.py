"""The configuration of a run, validated at birth and frozen.

One file (YAML or JSON) describes a run for the service and for the simulation alike.
Extra fields are refused; every message names the field and the value received.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from shared import calibration, privacy
from shared.assistance import AnyAssistant, Assistant
from shared.calibration import Calibration
from shared.compression import Compression
from shared.distillation import Distillation
from shared.frozen import Frozen
from shared.metric_names import check_metric
from shared.own_parts import OwnPath, is_own
from shared.partition_choice import Partition
from shared.presets import expanded
from shared.privacy import PrivateTraining
from shared.problems import InvalidConfiguration
from shared.rules import MEAN, AnyRule, MeanRule, VectorRule
from shared.schedules import CONSTANT, Schedule
from shared.secure.ring import SMALLEST_SUM, Bits, Ring
from shared.texts import find_nearest
from shared.travelling import find_conflict as find_travelling_conflict
from shared.value_faults import list_faults, say_value_fault
from shared.vocabulary import AnyMetric, Metric, Slug
from shared.weightings import AnyWeighting as Weighting
from shared.weightings.base import Need
from shared.weightings.disco import DiscoWeighting
from shared.weightings.sizes import SizesWeighting
from shared.weightings.uniform import UniformWeighting

__all__ = [
    "ANYONE",
    "EVERYBODY",
    "AlgorithmChoice",
    "AnyMetric",
    "Assistant",
    "Calibration",
    "Compression",
    "DiscoWeighting",
    "Distillation",
    "Draws",
    "Frozen",
    "LocalTraining",
    "Members",
    "Metric",
    "Participants",
    "Partition",
    "RunConfig",
    "ScoreName",
    "ScoreRule",
    "SecureSums",
    "SizesWeighting",
    "Slug",
    "StopWhen",
    "Tag",
    "UniformWeighting",
    "Weighting",
]

Draws = Literal["seeded", "feddisco-release"]
Tag = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$", description="small letters, digits, . _ and -")
]
ScoreName = Annotated[str, Field(min_length=1, max_length=200, description="of a score of the model")]
ScoreRule = Literal["median", "weighted"]
_Steps = Annotated[int, Field(ge=0, le=10_000_000)]
_RELEASE_ROUNDS = 10_000
"""Each draw repeats those before it."""
_LONGEST_WITH_TWIN = 63 - len("-fedavg")
_AMOUNTS = ("epochs", "steps", "steps_range")


class AlgorithmChoice(Frozen):
    """An algorithm by name (``shared/algorithms/NAME.py``) or import path, and its parameters."""

    name: str = Field("fedavg", pattern=r"^([a-z][a-z0-9_]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class LocalTraining(Frozen):
    """What each client does in a round: it trains some epochs, or some steps, or steps drawn from a range.

    ``steps_range`` (lowest, highest; both included) is drawn anew for each client and round from the
    run's seed: clients of different speeds. The last incomplete batch of an epoch is dropped (as in the
    paper) unless it is the only one.
    """

    epochs: int | None = Field(None, ge=0, le=10_000)
    steps: int | None = Field(None, ge=0, le=10_000_000)
    steps_range: tuple[_Steps, _Steps] | None = None
    batch_size: int = Field(64, ge=1)
    drop_last: bool = True
    learning_rate: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0)
    clip_norm: float | None = Field(None, gt=0)
    optimizer: Literal["sgd", "adam", "adamw"] | OwnPath = Field(
        "sgd", description="begun anew in each round; momentum goes with sgd"
    )
    schedule: Schedule = Field(CONSTANT, description="of the learning rate over the rounds")
    loss: OwnPath | None = Field(None, description="None: the task's; module:attribute of (outputs, targets)")
    class_weights: Literal["balanced"] | tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="of the cross-entropy: a weight a class, or balanced by the client's own counts"
    )

    @model_validator(mode="before")
    @classmethod
    def _momentum_is_of_sgd(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("optimizer", "sgd") != "sgd":
            return {"momentum": 0.0, **value}
        return value

    @model_validator(mode="after")
    def _one_loss(self) -> Self:
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum goes with sgd, not with {self.optimizer}, received {self.momentum:g}")
        if self.loss is not None and self.class_weights is not None:
            raise ValueError("class_weights are of the task's loss: leave one of the two out")
        return self

    @property
    def own_parts(self) -> dict[str, str]:
        """Import paths by the setting that names them."""
        named = {"optimizer": self.optimizer, "schedule": self.schedule.kind, "loss": self.loss}
        return {name: path for name, path in named.items() if is_own(path) and path is not None}

    def in_round(self, number: int, rounds: int) -> Self:
        """As it is in round ``number`` of ``rounds``: with that round's learning rate."""
        if self.schedule == CONSTANT:
            return self
        rate = self.learning_rate * self.schedule.find_factor(number, rounds)
        return self.model_copy(update={"learning_rate": rate})

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_unless_said(cls, value: Any) -> Any:
        if isinstance(value, dict) and all(value.get(name) is None for name in _AMOUNTS):
            return {**value, "epochs": 1}
        return value

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        given = {name: getattr(self, name) for name in _AMOUNTS if getattr(self, name) is not None}
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(_AMOUNTS)}, received {given}")
        if self.steps_range is not None and self.steps_range[0] > self.steps_range[1]:
            raise ValueError("steps_range goes from the lowest to the highest")
        return self


class StopWhen(Frozen):
    """Ends a run before its last round, once a score has not become better for a while."""

    metric: ScoreName = Field("accuracy", description="accuracy, loss, or another score of the run")
    patience: int = Field(ge=1, description="evaluated rounds in a row without a better score")
    min_change: float = Field(0.0, ge=0, description="what counts as better: by more than this")


Members = (
    Literal["anyone"] | tuple[Annotated[str, Field(pattern=r"^(group:)?[a-z0-9][a-z0-9._-]{0,62}$")], ...]
)
ANYONE: Final = "anyone"


class Participants(Frozen):
    """Who may take part in a run, and as what: clients by name, ``group:NAME``, or ``anyone``.

    A role that is left out is nobody's. Short forms: ``anyone``, or one list for both roles.
    """

    trainers: Members = ()
    evaluators: Members = ()

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"trainers": value, "evaluators": value} if isinstance(value, str | list | tuple) else value

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.trainers:
            raise ValueError("trainers: name at least one client or group, or anyone")
        return self

    def admits(self, role: str, client: str, group: str | None) -> bool:
        """Whether a client may take part as ``role``, trainer or evaluator.

        >>> Participants(trainers=["north", "group:clinics"]).admits("trainer", "south", "clinics")
        True
        """
        members = {"trainer": self.trainers, "evaluator": self.evaluators}[role]
        return members == ANYONE or client in members or (group is not None and f"group:{group}" in members)

    @property
    def trainers_named(self) -> int | None:
        """The most trainers there can be; None if the names do not tell."""
        open_ended = self.trainers == ANYONE or any(member.startswith("group:") for member in self.trainers)
        return None if open_ended else len(set(self.trainers))


def _check_quorum(rule: VectorRule, quorum: int) -> None:
    if rule.updates_needed > quorum:
        raise ValueError(
            f"aggregation needs {rule.updates_needed} updates a round, a quorum is {quorum}: raise quorum"
        )


EVERYBODY: Final = Participants(trainers=ANYONE, evaluators=ANYONE)


def _name_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Shadowed = Annotated[Weighting, BeforeValidator(_name_kind)]
"""A weighting, or its kind alone."""


class SecureSums(Frozen):
    """Updates are added up so that nobody learns one of them: fixed point, and masks in the service."""

    threshold: float = Field(
        2 / 3,
        gt=0.5,
        le=1,
        description="share t/n of a round's clients without whom nothing is unmasked; fewer than 2t - n of "
        "them learn nothing of another, also together with a coordinator that lies",
    )
    clip: float = Field(8.0, gt=0, description="largest change of one parameter by one client")
    bits: Bits = Field(64, description="of a summed number: 32 halves the bytes, 64 is finer")
    step_deadline_seconds: float = Field(
        120.0,
        gt=0,
        le=30 * 86400,
        description="in the service: for each step of a sum but training, which has round_deadline_seconds",
    )

    def make_ring(self, weighting: Weighting, clients: int) -> Ring:
        """The numbers of a sum over ``clients``. Raises InvalidConfiguration if they leave too few bits."""
        return Ring(self.bits, clients, self.clip * max(1.0, weighting.largest_score))


def split_tags(text: str) -> tuple[str, ...]:
    """
    >>> split_tags("pinned, baseline,pinned")
    ('pinned', 'baseline')
    """
    return tuple(dict.fromkeys(text.replace(",", " ").split()))


_FAULTS_SHOWN = 20


def describe_faults(error: ValidationError) -> str:
    """Each field, what is wrong with it, and the value received; after the first, only how many more."""
    said, faults = [], list_faults(error.errors(include_url=False))
    for fault in faults[:_FAULTS_SHOWN]:
        what, received = _say_fault(fault), f"{fault['input']!r:.80}"
        known = "" if what.startswith(received) else f" (received {received})"
        said.append(f"{'.'.join(map(str, fault['loc'])) or 'the whole'}: {what}{known}")
    more = len(faults) - len(said)
    return "; ".join(said) + (f"; and {more:,} more" if more else "")


def _say_fault(fault: Mapping[str, Any]) -> str:
    """Pydantic's words, but for those that say nothing to who writes YAML."""
    if fault["type"] != "extra_forbidden":
        return say_value_fault(fault)
    *outer, name = fault["loc"]
    kind = LocalTraining if outer == ["local"] else Frozen if outer else RunConfig
    near = find_nearest(str(name), kind.model_fields)
    return f"there is no such key; did you mean {near[0]}?" if near else "there is no such key"


class RunConfig(Frozen):
    """One federated training job."""

    name: Slug = Field(description="the run's id: unique on a coordinator")
    task: str = Field("digits", min_length=1, max_length=200, description="built-in name or module:attribute")
    task_options: dict[str, Any] = Field(default_factory=dict)
    model: str | None = Field(None, max_length=200, description="None: the task's own choice")
    classes: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] | None = Field(
        None, description="the class contract; None: the built-in task's"
    )
    rounds: int = Field(20, ge=1, le=1_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    algorithm: AlgorithmChoice = Field(default_factory=lambda: AlgorithmChoice(name="fedavg"))
    weighting: Weighting = Field(default_factory=DiscoWeighting)
    aggregation: AnyRule = Field(
        MEAN,
        description="what the updates are combined by, beneath any weighting: their mean, or a robust rule",
    )
    average_every: int = Field(
        1,
        ge=1,
        le=1000,
        description="FedSkip: rounds from one average to the next; in those between, each model goes on to "
        "another client as it is",
    )
    shadow: tuple[Shadowed, ...] = Field(
        (),
        max_length=8,
        description="other weightings: of each scored round's updates they make models that are only scored",
    )
    also: Literal["fedavg"] | None = Field(
        None,
        description="fedavg: the coordinator creates a second run beside it, which averages by sizes alone",
    )
    max_norm: float = Field(
        1000.0,
        gt=0,
        description="an update may move the model by so many times the model's norm (at least 1), no further",
    )
    max_entry: float = Field(
        1e12, gt=0, description="the largest magnitude that a number in an update may have"
    )
    max_weight: float | None = Field(
        None, gt=0, le=1, description="the largest aggregation weight of a client; the others are rescaled"
    )
    local: LocalTraining = Field(default_factory=lambda: LocalTraining(epochs=1))
    partition: Partition | None = Field(None, description="demos and experiments only")
    min_clients: int = Field(
        2,
        ge=1,
        description="the run starts by itself when so many trainers are ready; partition: all of its clients",
    )
    autostart: bool = True
    participants: Participants = Field(EVERYBODY, description="who may take part, and as what")
    join: Literal["late", "before_start"] = Field(
        "late", description="whether clients may still join when the run has started"
    )
    max_examples: int | None = Field(
        None, ge=1, le=2**53, description="the most examples that a client may declare; None: any number"
    )
    approve: Literal["nothing", "sizes"] = Field(
        "nothing", description="sizes: a client's first and every changed size waits for the operator"
    )
    clients_per_round: int | None = Field(None, ge=1, description="None: every ready client")
    draws: Draws = Field(
        "seeded",
        description="of a round's clients: anew from seed and round, or as FedDisco's released program does, "
        "one sample after the other from a generator seeded once",
    )
    quorum: int | None = Field(
        None,
        ge=1,
        description="updates without which a round is abandoned at its deadline; None: half of its clients",
    )
    round_deadline_seconds: float = Field(3600.0, gt=0, le=30 * 86400)
    max_attempts: int = Field(3, ge=1, description="draws of one round before the run pauses")
    waiting_deadline_seconds: float = Field(
        86400.0, gt=0, le=365 * 86400, description="a run that cannot go on for so long pauses"
    )
    combine_scores: ScoreRule = Field(
        "median", description="several evaluators' scores as one: their median, or weighted by their sizes"
    )
    evaluate_every: int = Field(1, ge=0, description="0: never")
    stop_when: StopWhen | None = Field(None, description="None: after the last round only")
    keep: Literal["last", "best"] = Field(
        "last",
        description="which round's model the run ends with; best: by stop_when's metric or the headline",
    )
    metrics: tuple[Annotated[str, AfterValidator(check_metric)], ...] = Field(
        (),
        max_length=32,
        description="further scores of each evaluation: balanced_accuracy, sensitivity:CLASS, ...; "
        "empty: loss and accuracy alone",
    )
    headline: ScoreName | None = Field(
        None, description="the score that is shown first; None: the accuracy, or the loss where there is none"
    )
    keep_updates: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="newest completed rounds whose updates are kept for replays; None: all",
    )
    tags: tuple[Tag, ...] = Field(
        (), max_length=20, description="words by which the run is found; `pinned` puts it first in the list"
    )
    buffers: Literal["average", "keep-local"] = "average"
    compression: Compression | None = Field(
        None, description="None: updates are sent whole; otherwise what they changed, in fewer bytes"
    )
    distillation: Distillation | None = Field(
        None,
        description="None: a round's model is the average; otherwise that learns from all clients' models, "
        "on examples that belong to no client",
    )
    assistant: AnyAssistant | None = Field(
        None,
        description="in the service: the evaluator that is sent single updates and does the step of a round "
        "that needs data. A simulation does that step itself",
    )
    secure: SecureSums | None = Field(
        None, description="None: updates arrive in clear; otherwise only their sums are known"
    )
    dp: PrivateTraining | None = Field(
        None, description="None: training by plain gradients; otherwise by DP-SGD at each client"
    )
    calibration: Calibration | None = Field(
        None,
        description="ccvr: in the last round all clients measure, and the classifier is trained anew",
    )
    data_licence: str | None = Field(
        None, max_length=200, description="of the data, for whoever takes the model home"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        weighting = {"weighting": _name_kind(value["weighting"])} if "weighting" in value else {}
        return expanded(value | weighting)

    @model_validator(mode="before")
    @classmethod
    def _everybody_of_a_partition(cls, value: Any) -> Any:
        """A run on a dealt data set starts with all of its clients, unless it says otherwise."""
        if isinstance(value, dict) and value.get("partition") is not None and "min_clients" not in value:
            try:
                return {**value, "min_clients": Partition.model_validate(value["partition"]).clients}
            except ValidationError:
                return value  # refused below, by the name of its field
        return value

    @model_validator(mode="before")
    @classmethod
    def _disco_that_clients_compute_alone(cls, value: Any) -> Any:
        """With secure sums, what Disco leaves open becomes what clients can compute from sums."""
        if not isinstance(value, dict) or value.get("secure") is None:
            return value
        weighting = _name_kind(value.get("weighting") or "disco")
        if not isinstance(weighting, dict) or weighting.get("kind") != "disco":
            return value
        return {**value, "weighting": {"normalise": "all_clients", "on_all_zero": "raise", **weighting}}

    @field_validator("classes")
    @classmethod
    def _distinct(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and (len(set(classes)) != len(classes) or len(classes) < 2):
            raise ValueError("needs at least two distinct class names")
        return classes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.quorum is not None and self.quorum > self.clients_expected:
            raise ValueError(
                f"quorum {self.quorum} is more than the {self.clients_expected} clients of a round"
            )
        if self.clients_per_round is not None and self.clients_per_round > self.min_clients:
            raise ValueError(
                f"clients_per_round {self.clients_per_round} exceeds min_clients {self.min_clients}"
            )
        if isinstance(self.aggregation, VectorRule):
            _check_quorum(self.aggregation, self.updates_needed)
        if self.weighting.learns and not isinstance(self.aggregation, MeanRule):
            raise ValueError(
                f"weighting: {self.weighting.kind} learns how to mix the clients' models in their mean, and "
                f"aggregation {self.aggregation.kind} does not mix them like that; take one of the two"
            )
        named = self.participants.trainers_named
        if named is not None and named < self.min_clients:
            raise ValueError(
                f"participants names {named} trainers, fewer than min_clients {self.min_clients}"
            )
        if self.draws == "feddisco-release" and self.rounds > _RELEASE_ROUNDS:
            raise ValueError(
                f"draws feddisco-release goes with {_RELEASE_ROUNDS} rounds at most, received {self.rounds}"
            )
        if self.needs_scores and not self.evaluate_every:
            raise ValueError("stop_when and keep: best go by scores, which evaluate_every: 0 never asks for")
        target = getattr(self.weighting, "target", "uniform")
        if self.classes is not None and not isinstance(target, str) and len(target) != len(self.classes):
            raise ValueError(f"the target has {len(target)} shares for {len(self.classes)} classes")
        weights = self.local.class_weights
        if self.classes is not None and isinstance(weights, tuple) and len(weights) != len(self.classes):
            raise ValueError(f"local.class_weights has {len(weights)} for {len(self.classes)} classes")
        self._check_secure()
        self._check_private()
        self._check_calibration()
        self._check_shadows()
        self._check_distillation()
        self._check_travelling()
        self._check_assistant()
        if self.also and len(self.name) > _LONGEST_WITH_TWIN:
            raise ValueError(
                f"also: the name of a run with a twin has {_LONGEST_WITH_TWIN} characters at most"
            )
        return self

    def _check_shadows(self) -> None:
        """A shadow asks the sites for nothing that the run does not ask them for anyway."""
        if not self.shadow:
            return
        if self.secure is not None:
            raise ValueError("shadow: weighs single updates, of which nobody sees one with secure sums")
        if not self.evaluate_every:
            raise ValueError("shadow: its models are only scored, which evaluate_every: 0 never asks for")
        labels = [each.label for each in self.shadow]
        if len({*labels, self.weighting.label}) <= len(labels):
            raise ValueError(
                f"shadow: {', '.join(labels)} are not distinct, or one is the run's own weighting"
            )
        for each in self.shadow:
            if each.remembers:
                raise ValueError(
                    f"shadow: {each.kind} goes by its own earlier rounds, which a shadow has not"
                )
            if each.needs - {Need.UPDATES} - self.weighting.needs or (
                each.discrepancy not in (None, self.weighting.discrepancy)
            ):
                raise ValueError(
                    f"shadow: {each.label} asks sites for more than {self.weighting.kind}, the run's "
                    "weighting; let it be the run's weighting, and that one the shadow"
                )

    def _check_distillation(self) -> None:
        """What an ensemble of the clients' models cannot go with."""
        if self.distillation is None:
            return
        reasons = {
            "it runs each client's model, of which nobody sees one with secure sums": self.secure is not None,
            "a robust aggregation is of no use where each client's model has a say in the ensemble": (
                not isinstance(self.aggregation, MeanRule)
            ),
            "it runs each client's model, whose running statistics stay there with buffers: keep-local": (
                self.buffers == "keep-local"
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ValueError(f"distillation: {reason}")

    def _check_travelling(self) -> None:
        if self.average_every == 1:
            return
        conflict = find_travelling_conflict(
            weighting=self.weighting.kind,
            needs=self.weighting.needs,
            secure=self.secure is not None,
            robust=not isinstance(self.aggregation, MeanRule),
            compressed=self.compression is not None,
            distilled=self.distillation is not None,
            calibrated=self.calibration is not None,
            shadowed=bool(self.shadow),
        )
        if conflict is not None:
            raise ValueError(f"average_every: {conflict}")

    def _check_assistant(self) -> None:
        if self.assistant is None:
            return
        learns = Need.DATA in self.weighting.needs
        evaluators = self.participants.evaluators
        reasons = {
            "no step of this run needs data, so nobody may be sent single updates": (
                self.distillation is None and not learns
            ),
            "it does one step a round: take distillation, or a weighting that learns on data, not both": (
                self.distillation is not None and learns
            ),
            "it would have to do its step for each shadow, too": bool(self.shadow),
            f"{self.assistant.client} is not among participants.evaluators": not (
                self.participants.admits("evaluator", self.assistant.client, None)
                or any(member.startswith("group:") for member in evaluators)
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ValueError(f"assistant: {reason}")

    def _check_private(self) -> None:
        if self.dp is None:
            return
        conflict = privacy.find_conflict(
            weighting=self.weighting.kind,
            needs=self.weighting.needs,
            clip_norm=self.local.clip_norm,
            class_weights=self.local.class_weights,
            loss=self.local.loss,
        )
        if conflict is not None:
            raise ValueError(f"dp: {conflict}")

    def _check_calibration(self) -> None:
        if self.calibration is None:
            return
        conflict = calibration.find_conflict(
            rounds=self.rounds,
            is_secure=self.secure is not None,
            is_private=self.dp is not None,
            is_mean=isinstance(self.aggregation, MeanRule),
            stops_early=self.stop_when is not None,
        )
        if conflict is not None:
            raise ValueError(f"calibration: {conflict}")

    def _check_secure(self) -> None:
        if self.secure is None:
            return
        reasons = {
            self.weighting.find_dependence(): True,
            "a robust aggregation looks at single updates, which nobody sees": not isinstance(
                self.aggregation, MeanRule
            ),
            "compression packs single updates, which nobody could add up under their masks": (
                self.compression is not None
            ),
            "a schedule changes what a sum of several clients' steps is divided by": (
                self.local.schedule != CONSTANT
            ),
            "max_weight limits single weights, which nobody knows": self.max_weight is not None,
            "max_examples and approve go by single sizes, which nobody knows": self.max_examples is not None
            or self.approve != "nothing",
            f"a sum of {self.clients_expected} clients tells each the others' numbers; take 3 or more": (
                self.clients_expected < SMALLEST_SUM
            ),
        }
        for reason, holds in reasons.items():
            if reason is not None and holds:
                raise ValueError(f"secure: {reason}")
        try:
            self.secure.make_ring(self.weighting, self.clients_expected)
        except InvalidConfiguration as error:
            raise ValueError(f"secure: {error}") from error

    def make_twin(self) -> Self | None:
        """The run that ``also`` asks for: as this one, by FedAvg and sizes; None: it asks for none.

        >>> RunConfig(name="skin", also="fedavg").make_twin().name
        'skin-fedavg'
        """
        if self.also is None:
            return None
        plain = {
            "algorithm": self.also,
            "weighting": {"kind": "sizes"},
            "average_every": 1,
            "shadow": (),
            "also": None,
            "distillation": None,
            "assistant": None,
            "calibration": None,
        }
        return self.change({"name": f"{self.name}-{self.also}", **plain})

    def change(self, changes: Mapping[str, Any]) -> Self:
        """With these fields changed. Raises InvalidConfiguration, which names each that is wrong."""
        try:
            return self.model_validate(self.model_dump(mode="json") | dict(changes))
        except ValidationError as error:
            raise InvalidConfiguration(
                f"the run cannot be changed like that: {describe_faults(error)}"
            ) from None

    @property
    def clients_expected(self) -> int:
        """Clients of a round when nobody is missing or joined late."""
        return self.clients_per_round if self.clients_per_round is not None else self.min_clients

    @property
    def updates_needed(self) -> int:
        """The quorum: as configured, otherwise half of the clients expected, rounded up."""
        return self.quorum if self.quorum is not None else -(-self.clients_expected // 2)

    @property
    def needs_scores(self) -> bool:
        """Whether what happens in the run goes by its evaluators' scores."""
        return self.stop_when is not None or self.keep == "best"

    @property
    def deciding_metric(self) -> str | None:
        """The score by which a round is better than another; None: as for ``headline``."""
        return self.stop_when.metric if self.stop_when is not None else self.headline

    def is_scored(self, number: int) -> bool:
        """Whether evaluators are asked for the scores of round ``number``."""
        every = self.evaluate_every
        return every > 0 and (number % every == 0 or number == self.rounds)

    def averages(self, number: int) -> bool:
        """Whether all clients start from one model after round ``number``: the average that it made."""
        return number % self.average_every == 0

    def calibrates(self, number: int) -> bool:
        """Whether round ``number`` trains the classifier anew, in place of the model at the clients."""
        return self.calibration is not None and number == self.rounds

    @property
    def needs_discrepancy(self) -> bool:
        """Whether clients are asked for ``d_k`` (only when a weight depends on it: least disclosure)."""
        return self.weighting.needs_discrepancy
