"""What this site takes part in, and what it tells: its policy, for all its runs.

:mod:`worker.policy.document` reads ``policy.yaml`` and joins it with the settings, :mod:`worker.policy.check`
compares a run with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shared.algorithms.base import Told
from shared.fingerprints import parse_fingerprint
from shared.frozen import Frozen
from shared.left_out import OnBroken
from shared.secure.ring import SMALLEST_SUM
from shared.vocabulary import AnyMetric
from worker.words import Disclosure, Epsilon, OnChangedData, Sizes, Tell

__all__ = [
    "DEALT",
    "OWN",
    "Disclosure",
    "Epsilon",
    "OnChangedData",
    "Policy",
    "SitePolicy",
    "Sizes",
    "TargetKind",
    "Tell",
    "allows",
]

TargetKind = Literal["uniform", "explicit", "global"]

_Strings = tuple[Annotated[str, Field(min_length=1, max_length=500)], ...]
_Patterns = Annotated[_Strings, Field(min_length=1)]
_Fewest = Annotated[int, Field(ge=1, strict=True)]
_Most = _Fewest | None
_Switch = Annotated[bool, Field(strict=True)]


_Fingerprint = Annotated[str, AfterValidator(parse_fingerprint)]


class Policy(Frozen):
    """One field a key of ``policy.yaml``, in the order in which they are printed; None is no limit."""

    runs: _Patterns = Field(
        ("*",), description='Names of the runs that this site takes part in; `"skin-*"` is a pattern.'
    )
    coordinators: tuple[_Fingerprint, ...] = Field(
        (),
        description="SHA-256 fingerprints of the TLS certificates of the coordinators that this site talks "
        "to, beside the usual check. Empty: that check alone.",
    )
    tasks: _Patterns = Field(
        ("*", "*:*"),
        description='Tasks that this site works on. `"*"` is every built-in one, `"ours.skin:*"` one\'s own '
        "by import path.",
    )
    algorithms: _Patterns = Field(
        ("*",),
        description='Algorithms that a run may use here. `"*"` is every built-in one, `"ours.fedslow:*"` '
        "one's own by import path.",
    )
    models: _Patterns = Field(
        ("*", "torchvision:*", "hf:*"),
        description='Models that a run may train here. `"*"` is every built-in one, and `"default"` among '
        'them what the task takes by itself; `"torchvision:*"` are those of torchvision, `"hf:*"` the bases '
        "of hf-text and hf-image, which have to lie here.",
    )
    parts: _Strings = Field(
        (),
        description="Parts of one's own that a run may name here by import path, as "
        '`"ours.training:*"`: its optimizer, schedule, loss, metric of the discrepancy, and the partition of '
        "data that it deals. Empty: none.",
    )
    most_parameters: _Most = Field(
        100_000_000, description="Size of the largest model: all numbers in its tensors."
    )
    most_rounds: _Most = Field(1_000, description="Rounds of a run, at most.")
    most_epochs: _Most = Field(50, description="Epochs of one round, at most.")
    most_steps: _Most = Field(50_000, description="Steps of one round, at most, where a run counts in steps.")
    largest_batch: _Most = Field(4_096, description="Examples in one batch, at most.")
    fewest_trainers: _Fewest = Field(
        2,
        description="Trainers of a round, at least, when none is missing. Of two, each can compute the "
        "other's update from the new model; of more, only the sum of the others'.",
    )
    fewest_updates: _Fewest = Field(
        1,
        description="Updates that a new model is made of, at least, when trainers are missing: the quorum.",
    )
    sums_only: _Switch = Field(
        False,
        description="Take part only in runs whose coordinator learns sums alone (`secure` in the run's "
        "configuration): no update, size or discrepancy of this site.",
    )
    smallest_sum: Annotated[int, Field(ge=SMALLEST_SUM, strict=True)] = Field(
        SMALLEST_SUM,
        description="Sites in a secure sum that this site helps to unmask, at least, itself included.",
    )
    smallest_difference: Annotated[int, Field(ge=1, strict=True)] = Field(
        1,
        description="Sites by which the secure sums of a run's rounds may differ, at least. A site's score "
        "is the same in every round, so with 1 that of a site that was missing once, or came late, is known "
        "by the difference; with 3 that of three sites together is, and this site does not help to unmask a "
        "round in which one or two are missing.",
    )
    disclosure: Disclosure = Field(
        "noised",
        description="What runs are told of the labels here: no discrepancy (`none`), one with noise "
        "(`noised`), or the exact one (`exact`), from which the label counts can be computed.",
    )
    epsilon: Annotated[Epsilon, Field(strict=True)] = Field(
        1.0, description="With `noised`: the privacy loss of one answer. Less is more noise."
    )
    metrics: tuple[AnyMetric, ...] = Field(
        ("kl",),
        description="Metrics of the discrepancy that runs are answered by: `kl`, `l1`, `l2`, `cosine`, and "
        "with `disclosure: exact` one's own by import path, which `parts` has to allow as well.",
    )
    targets: tuple[TargetKind, ...] = Field(
        ("uniform", "explicit", "global"),
        description="Targets of the discrepancy that runs are answered for: the uniform one, one that a run "
        "writes out (`explicit`), which then is the only one for ever, and that of all sites together "
        "(`global`), for which the label counts here are added up with the others' in a secure sum.",
    )
    features: Told = Field(
        "nothing",
        description="What runs are told of each class here, as the model sees it: `nothing`, sums that give "
        "`means` of features (`fedfm`), or `covariances` too (`calibration`). Both give away the label "
        "counts, and traces of examples.",
    )
    models_handed_on: _Switch = Field(
        False,
        description="Take part also in runs that do not average in every round (`average_every`): in the "
        "rounds between, what this site trained is handed on to one other site as it is, and this site goes "
        "on from what another has trained.",
    )
    assistant: _Switch = Field(
        False,
        description="Take part in runs that name an assistant: an evaluator that is sent this site's single "
        "updates, as the coordinator is. At an evaluator: work as one where a run names it, on the training "
        "data here.",
    )
    most_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        None,
        description="What the examples here may lose to training in all runs together, as epsilon of "
        "differential privacy. With a number here, runs without `dp` are declined.",
    )
    epsilon_delta: Annotated[float, Field(gt=0, lt=1, strict=True)] = Field(
        1e-5, description="The delta at which `most_epsilon` is meant: below one over the examples here."
    )
    tell_epsilon: _Switch = Field(
        False,
        description="Tell the run's page what the run has cost the examples here, as epsilon. It tells the "
        "number of examples, too, which secure sums hide.",
    )
    sizes: Sizes = Field(
        "exact",
        description="The number of examples as it is (`exact`), or to two significant digits (`rounded`).",
    )
    on_broken: OnBroken = Field(
        "decline",
        description="With files and rows that cannot be read: `decline` the run, or `skip` them, counted.",
    )
    on_changed_data: OnChangedData = Field(
        "enrol",
        description="When the data here have changed: `enrol` anew, `decline` the run, or `continue` where "
        "the number of examples is the same.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description='Names in the data here that stand for a class of the run: `{"mel": "melanoma"}`.',
    )
    tell: Tell = Field(
        "sentences",
        description="Of a fault here the coordinator is told a sentence of a fixed set (`sentences`), or all "
        "that this site's log says (`full`).",
    )


OWN = Policy()
"""For data of the site's own."""

DEALT = Policy(
    most_parameters=None,
    most_rounds=None,
    most_epochs=None,
    most_steps=None,
    largest_batch=None,
    fewest_trainers=1,
    disclosure="exact",
    features="covariances",
    models_handed_on=True,
    assistant=True,
    tell_epsilon=True,
)
"""For data that the run's partition deals: nobody's secret."""


@dataclass(frozen=True)
class SitePolicy:
    """What holds here, for data of the site's own and for data that a run's partition deals.

    ``stated`` says where a key got its value, for this site's log: ``policy.yaml line 7``.
    """

    own: Policy = OWN
    dealt: Policy = DEALT
    stated: Mapping[str, str] = field(default_factory=dict)

    def for_data(self, *, dealt: bool) -> Policy:
        return self.dealt if dealt else self.own

    def where(self, key: str) -> str:
        return self.stated.get(key, "the default policy")


def allows(patterns: Sequence[str], name: str) -> bool:
    """Whether a pattern fits ``name``; import paths are fitted only by a pattern that is one, with a colon.

    >>> allows(["*"], "fedprox"), allows(["*"], "theirs:Algorithm"), allows(["theirs:*"], "theirs:Algorithm")
    (True, False, True)
    """
    return any(fnmatchcase(name, each) for each in patterns if (":" in each) == (":" in name))
