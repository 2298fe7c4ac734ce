"""What a site may tell the coordinator of a fault: a code and a sentence of this file, never anything else.

A sentence names no file, no value and no text of somebody's code; its figures are counts. The full text
stays in the site's log. ``docs/faults.md`` describes every code.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shared.texts import format_size

__all__ = ["LASTING", "SENTENCES", "TRANSIENT", "Diverged", "Doing", "Fault", "FaultCode"]


class Doing(StrEnum):
    """What the site was doing, in the words of the sentences."""

    PREPARING = "preparing the task and its model"
    LOADING_TRAINING_DATA = "loading the training data"
    LOADING_TEST_DATA = "loading the test data"
    COUNTING = "counting the classes"
    TRAINING = "training"
    SCORING = "scoring a model"
    ASSISTING = "working as the run's assistant"
    WORKING = "working on the run"


class FaultCode(StrEnum):
    """Stable words for programs."""

    OTHER_RUNS = "other-runs"
    OTHER_TASK = "other-task"
    OWN_DATA = "own-data"
    NO_PART_LEFT = "no-part-left"
    INDEX_TAKEN = "index-taken"
    CONFIGURATION = "configuration"
    MODEL_DIFFERS = "model-differs"
    NOT_ITS_PART = "not-its-part"
    RUN_NOT_ALLOWED = "run-not-allowed"
    TASK_NOT_ALLOWED = "task-not-allowed"
    ALGORITHM_NOT_ALLOWED = "algorithm-not-allowed"
    MODEL_NOT_ALLOWED = "model-not-allowed"
    PART_NOT_ALLOWED = "part-not-allowed"
    MODEL_TOO_LARGE = "model-too-large"
    TOO_MANY_ROUNDS = "too-many-rounds"
    TOO_MANY_EPOCHS = "too-many-epochs"
    TOO_MANY_STEPS = "too-many-steps"
    BATCH_TOO_LARGE = "batch-too-large"
    TOO_FEW_TRAINERS = "too-few-trainers"
    TOO_FEW_UPDATES = "too-few-updates"
    SUMS_ONLY = "sums-only"
    TOO_FEW_IN_SUM = "too-few-in-sum"
    FEATURES_NOT_TOLD = "features-not-told"
    MODELS_HANDED_ON = "models-handed-on"
    ASSISTANT_NOT_ALLOWED = "assistant-not-allowed"
    NOT_ASSISTANT = "not-assistant"
    NOT_PRIVATE = "not-private"
    PRIVACY_SPENT = "privacy-spent"
    NO_PRIVACY = "no-privacy"
    NO_DATA = "no-data"
    NO_EXAMPLES = "no-examples"
    DATA_UNFIT = "data-unfit"
    DATA_UNREADABLE = "data-unreadable"
    DATA_CHANGED = "data-changed"
    OTHER_EXAMPLES = "other-examples"
    TOO_FEW_EXAMPLES = "too-few-examples"
    NOTHING_TOLD = "nothing-told"
    OTHER_METRIC = "other-metric"
    TARGET_NOT_ALLOWED = "target-not-allowed"
    EMPTY_CLASS = "empty-class"
    OTHER_TARGET = "other-target"
    OTHER_CLASSES = "other-classes"
    TASK_ERROR = "task-error"
    OUT_OF_MEMORY = "out-of-memory"
    DIVERGED = "diverged"
    REFUSED = "refused"
    BODY_REFUSED = "body-refused"
    UPLOAD_CUT = "upload-cut"
    FILE_TOO_LARGE = "file-too-large"
    SUM_REFUSED = "sum-refused"
    STATE_FOLDER = "state-folder"
    SETTINGS = "settings"


SENTENCES: Final[Mapping[FaultCode, str]] = {
    FaultCode.OTHER_RUNS: "This worker takes part only in runs of other names.",
    FaultCode.OTHER_TASK: "This worker is set up for another task.",
    FaultCode.OWN_DATA: (
        "The run deals one data set to all its clients (partition), this worker has data of its own. "
        "Start it with --partition run to take a part."
    ),
    FaultCode.NO_PART_LEFT: (
        "All {parts} parts of the partition are taken, or the index set at the site is none of them."
    ),
    FaultCode.INDEX_TAKEN: "Index {index}, which is set at the site, belongs to another client.",
    FaultCode.CONFIGURATION: (
        "The site cannot prepare the run's task, options, classes or algorithm; its log names what differs."
    ),
    FaultCode.MODEL_DIFFERS: (
        "The model that the task builds at the site is not the run's; its log names the first difference. "
        "Install the same versions of the task and of PyTorch as at the coordinator."
    ),
    FaultCode.NOT_ITS_PART: (
        "The site was asked for what is not its part in the run, by its role and the run's configuration; "
        "its log says for what."
    ),
    FaultCode.RUN_NOT_ALLOWED: "The site's policy does not allow runs of this name.",
    FaultCode.TASK_NOT_ALLOWED: "The site's policy does not allow the run's task.",
    FaultCode.ALGORITHM_NOT_ALLOWED: "The site's policy does not allow the run's algorithm.",
    FaultCode.MODEL_NOT_ALLOWED: "The site's policy does not allow the run's model.",
    FaultCode.PART_NOT_ALLOWED: (
        "The site's policy does not allow a part of somebody's own that the run names: its optimizer, "
        "schedule, loss, metric of the discrepancy or partition."
    ),
    FaultCode.MODEL_TOO_LARGE: (
        "The site's policy limits models to {allowed} numbers, the run's has {asked}."
    ),
    FaultCode.TOO_MANY_ROUNDS: "The site's policy limits rounds to {allowed}, the run has {asked}.",
    FaultCode.TOO_MANY_EPOCHS: (
        "The site's policy limits the epochs of a round to {allowed}, the run has {asked} (local.epochs)."
    ),
    FaultCode.TOO_MANY_STEPS: (
        "The site's policy limits the steps of a round to {allowed}, the run has {asked} (local.steps)."
    ),
    FaultCode.BATCH_TOO_LARGE: (
        "The site's policy limits a batch to {allowed} examples, the run has {asked} (local.batch_size)."
    ),
    FaultCode.TOO_FEW_TRAINERS: (
        "The site's policy asks for at least {allowed} trainers in a round, the run has {asked} "
        "(min_clients, clients_per_round)."
    ),
    FaultCode.TOO_FEW_UPDATES: (
        "The site's policy asks for models of at least {allowed} updates, the run makes them of {asked} "
        "(quorum)."
    ),
    FaultCode.SUMS_ONLY: (
        "The site takes part only in runs whose coordinator learns sums alone, and the updates of this run "
        "arrive in clear (secure)."
    ),
    FaultCode.TOO_FEW_IN_SUM: (
        "The site's policy asks for at least {allowed} sites in a secure sum, the run has {asked} "
        "(min_clients, clients_per_round)."
    ),
    FaultCode.FEATURES_NOT_TOLD: (
        "The site does not tell what the run asks of the features of each class (algorithm, calibration)."
    ),
    FaultCode.MODELS_HANDED_ON: (
        "The site takes part only in runs that average in every round: in this one sites go on from each "
        "other's models (average_every)."
    ),
    FaultCode.ASSISTANT_NOT_ALLOWED: (
        "The run sends single updates to an evaluator, its assistant; the site's policy does not allow that."
    ),
    FaultCode.NOT_ASSISTANT: "The site's policy does not allow to work as the run's assistant.",
    FaultCode.NOT_PRIVATE: (
        "The site takes part only in runs that train with differential privacy, which this one does not (dp)."
    ),
    FaultCode.PRIVACY_SPENT: (
        "The run would cost the site's examples more privacy than its policy leaves, in all runs together."
    ),
    FaultCode.NO_PRIVACY: (
        "The run's differential privacy (dp) cannot be had at the site; its log says why."
    ),
    FaultCode.NO_DATA: "There are no data at the site. The worker has ended.",
    FaultCode.NO_EXAMPLES: "The site has no examples for its part in the run.",
    FaultCode.DATA_UNFIT: (
        "The data at the site do not fit the run's classes or task options; its log names what differs."
    ),
    FaultCode.DATA_UNREADABLE: "While {doing}, the site could not read a file; its log names the file.",
    FaultCode.DATA_CHANGED: (
        "The data at the site have changed since it enrolled, and its settings say to decline the run then."
    ),
    FaultCode.OTHER_EXAMPLES: (
        "The update was trained on {now} examples, but the site is enrolled with {enrolled}."
    ),
    FaultCode.TOO_FEW_EXAMPLES: (
        "The site has too few examples for the run: batch normalisation needs two in a batch."
    ),
    FaultCode.NOTHING_TOLD: "The site tells no discrepancy, which the run's weighting needs.",
    FaultCode.OTHER_METRIC: "The site does not answer by the run's metric of the discrepancy.",
    FaultCode.TARGET_NOT_ALLOWED: "The site does not answer for the run's target of the discrepancy.",
    FaultCode.EMPTY_CLASS: (
        "The run's target has a class of share 0: the discrepancy may be infinite, which no noise hides."
    ),
    FaultCode.OTHER_TARGET: (
        "The site has answered for another explicit target on the same data, and answers for one only."
    ),
    FaultCode.OTHER_CLASSES: (
        "The site has answered this on the same data with other classes or task options, and answers once."
    ),
    FaultCode.TASK_ERROR: "While {doing}, the task's code or a library failed; the site's log has the error.",
    FaultCode.OUT_OF_MEMORY: (
        "While {doing}, memory ran out at the site. Lower local.batch_size, or use another device there."
    ),
    FaultCode.DIVERGED: (
        "The local model is no longer finite. Lower local.learning_rate, or set local.clip_norm."
    ),
    FaultCode.REFUSED: "The coordinator refused what the site sent ({status}); the site's log has its words.",
    FaultCode.BODY_REFUSED: (
        "A proxy on the way from the site to the coordinator refuses bodies of {bytes} ({status})."
    ),
    FaultCode.UPLOAD_CUT: (
        "The site's update of {bytes} is cut on its way each time, while smaller requests go through: "
        "a proxy or firewall may limit the length or the time of a request."
    ),
    FaultCode.FILE_TOO_LARGE: (
        "The coordinator announced or sent a larger file than the run's tensors can be; the site stopped it."
    ),
    FaultCode.SUM_REFUSED: (
        "The site does not go on with the secure sum: too few others are left, or what it was asked could "
        "give numbers of single sites away. Its log says which."
    ),
    FaultCode.STATE_FOLDER: "The site's state folder cannot be written. The worker has ended.",
    FaultCode.SETTINGS: "A setting of the worker has to be put right first. The worker has ended.",
}
"""Placeholders are ``doing`` (:class:`Doing`) and counts; ``bytes`` are written with their unit."""

LASTING: Final = frozenset(
    {
        FaultCode.RUN_NOT_ALLOWED,
        FaultCode.TASK_NOT_ALLOWED,
        FaultCode.ALGORITHM_NOT_ALLOWED,
        FaultCode.MODEL_NOT_ALLOWED,
        FaultCode.PART_NOT_ALLOWED,
        FaultCode.MODEL_TOO_LARGE,
        FaultCode.TOO_MANY_ROUNDS,
        FaultCode.TOO_MANY_EPOCHS,
        FaultCode.TOO_MANY_STEPS,
        FaultCode.BATCH_TOO_LARGE,
        FaultCode.TOO_FEW_TRAINERS,
        FaultCode.TOO_FEW_UPDATES,
        FaultCode.SUMS_ONLY,
        FaultCode.TOO_FEW_IN_SUM,
        FaultCode.FEATURES_NOT_TOLD,
        FaultCode.MODELS_HANDED_ON,
        FaultCode.ASSISTANT_NOT_ALLOWED,
        FaultCode.NOT_ASSISTANT,
        FaultCode.NOT_PRIVATE,
        FaultCode.PRIVACY_SPENT,
        FaultCode.NO_PRIVACY,
        FaultCode.CONFIGURATION,
        FaultCode.MODEL_DIFFERS,
        FaultCode.NOT_ITS_PART,
        FaultCode.NO_DATA,
        FaultCode.NO_EXAMPLES,
        FaultCode.DATA_UNFIT,
        FaultCode.DATA_CHANGED,
        FaultCode.TOO_FEW_EXAMPLES,
        FaultCode.NOTHING_TOLD,
        FaultCode.OTHER_METRIC,
        FaultCode.TARGET_NOT_ALLOWED,
        FaultCode.EMPTY_CLASS,
        FaultCode.OTHER_TARGET,
        FaultCode.OTHER_CLASSES,
        FaultCode.FILE_TOO_LARGE,
        FaultCode.STATE_FOLDER,
    }
)
"""What another attempt does not mend: somebody at the site has to do something first."""

TRANSIENT: Final = frozenset(
    {FaultCode.DATA_UNREADABLE, FaultCode.REFUSED, FaultCode.BODY_REFUSED, FaultCode.UPLOAD_CUT}
)
"""What may be over in a moment, so a site tries a few times before it tells."""


@dataclass(frozen=True)
class Fault:
    """One of the sentences, with its figures. Others raise :class:`TypeError`.

    >>> Fault(FaultCode.NO_PART_LEFT, counts={"parts": 5}).sentence
    'All 5 parts of the partition are taken, or the index set at the site is none of them.'
    """

    code: FaultCode
    doing: Doing | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {*self.counts, *(["doing"] if self.doing is not None else [])}
        wanted = {name for _, name, _, _ in string.Formatter().parse(SENTENCES[self.code]) if name}
        if given != wanted:
            raise TypeError(f"{self.code.value} tells {sorted(wanted)}, received {sorted(given)}")
        if self.doing is not None and type(self.doing) is not Doing:
            raise TypeError(f"{self.doing!r} is not a Doing")
        if any(type(count) is not int for count in self.counts.values()):
            raise TypeError(f"{dict(self.counts)} are not counts")

    @property
    def sentence(self) -> str:
        figures = {
            name: format_size(count) if name == "bytes" else count for name, count in self.counts.items()
        }
        return SENTENCES[self.code].format(doing=self.doing, **figures)


class Diverged(ArithmeticError):
    """A client's loss or parameter is no longer finite; ``detail`` says where, ``hint`` what to do.

    Of the aggregated model the coordinator says ``shared.problems.ModelDiverged``.
    """

    code = "diverged"

    def __init__(self, detail: str) -> None:
        self.detail = detail
        self.hint = "Lower local.learning_rate, or set local.clip_norm."
        super().__init__(f"{detail} {self.hint}")
