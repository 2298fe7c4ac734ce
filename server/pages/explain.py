"""Why a client got its weight, written out with the round's own numbers.

The words of each weighting are in :mod:`server.pages.weighting_words`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from server.pages.weighting_words import INSTEAD, WORDS, Column, scores_sum, words_of
from server.pages.words import amount, counted, number, percent, plain
from shared.algorithms import load_algorithm
from shared.algorithms.fedfm import FedFm
from shared.calibration import Calibration
from shared.capping import is_feasible
from shared.config import ANYONE, Members, RunConfig, Weighting
from shared.problems import InvalidConfiguration
from shared.rules import AnyRule
from shared.schemas import AdjustmentView, LedgerRow, RoundStatus, RoundView, Step

__all__ = [
    "RULES",
    "WORDS",
    "adjustment_sentence",
    "admission",
    "cap_words",
    "columns",
    "fallback",
    "formula",
    "legend",
    "measuring_sentence",
    "rule_words",
    "scores_sum",
    "sentence",
    "step_sentence",
    "travelling_sentence",
    "weighting_name",
]


def weighting_name(weighting: Weighting) -> str:
    """The weighting on one line: ``Disco, a = 0.5, b = 0.1``."""
    words = words_of(weighting)
    return words.name.format_map(words.values(weighting))


def admission(config: RunConfig) -> str:
    """Who may take part, and whose word is believed about sizes."""
    if config.participants.trainers == config.participants.evaluators == ANYONE:
        who = "Any registered client may take part"
    else:
        trainers, evaluators = config.participants.trainers, config.participants.evaluators
        who = f"Trainers: {_members(trainers)}. Evaluators: {_members(evaluators)}"
    when = "until the run starts" if config.join == "before_start" else "at any time"
    most = "" if config.max_examples is None else f", at most {amount(config.max_examples)}"
    believed = {"nothing": "as declared", "sizes": "once the operator has approved them"}[config.approve]
    cap = "" if config.max_weight is None else f" No weight is above {percent(config.max_weight)}."
    return f"{who}. Clients join {when}. Their numbers of examples count {believed}{most}.{cap}"


def _members(members: Members) -> str:
    if isinstance(members, str):
        return "any registered client"
    return ", ".join(member.replace("group:", "group ") for member in members) or "nobody"


def formula(weighting: Weighting) -> str:
    """The rule of the round with its constants put in."""
    words = words_of(weighting)
    return words.formula.format_map(words.values(weighting))


def legend(weighting: Weighting) -> str:
    """What the letters of :func:`formula` stand for."""
    words = words_of(weighting)
    return words.legend.format_map(words.values(weighting))


def columns(weighting: Weighting) -> tuple[Column, ...]:
    """The numbers of a row that led from the size to the weight; those of the mean that is shrunk."""
    return words_of(getattr(weighting, "mean", weighting)).columns


def fallback(rows: Sequence[LedgerRow], weighting: Weighting) -> str | None:
    """A sentence when no score was above zero and the weights come from elsewhere; else nothing."""
    instead = getattr(getattr(weighting, "mean", weighting), "on_all_zero", None)
    scores = [row.score for row in rows if row.included and row.score is not None]
    if instead is None or not scores or max(scores) > 0:
        return None
    return f"No score of this round is above zero; {INSTEAD[instead]}."


def adjustment_sentence(adjustment: AdjustmentView | None) -> str | None:
    """What the weighting did to the model after averaging; None: nothing."""
    if adjustment is None:
        return None
    parts = []
    if adjustment.step != 1:
        parts.append(f"the mean update is taken {number(adjustment.step)} times")
    if adjustment.shrink != 1:
        parts.append(f"the whole model is multiplied by {number(adjustment.shrink)}")
    if adjustment.layers:
        factors = ", ".join(f"{name} {number(factor)}" for name, factor in adjustment.layers.items())
        parts.append(f"its layers are multiplied, each by its factor: {factors}")
    return f"Then {'; '.join(parts)}." if parts else None


RULES: Final[Mapping[str, str]] = {
    "mean": "The new model is the mean of the updates, weighted by pₖ.",
    "clipped": "Updates that move the model by more than {limit} are cut to that, then averaged by pₖ.",
    "trimmed-mean": (
        "Of each number of the model, the least and the largest values are left out, {trim} of the weight at "
        "either end, and the rest is averaged by pₖ."
    ),
    "median": "Each number of the model is the median of the updates, weighted by pₖ.",
    "krum": (
        "The new model is the one update that is nearest to its neighbours, if {byzantine} may lie (Krum)."
    ),
    "multi-krum": (
        "The updates nearest to their neighbours, if {byzantine} may lie (Krum), are averaged by pₖ; the "
        "others are left out."
    ),
    "geometric-median": "The new model is the point of least distance to the updates, weighted by pₖ.",
}


def rule_words(rule: AnyRule) -> str:
    """How the updates of a round become one model."""
    options = rule.model_dump()
    norm = options.get("norm")
    values = {
        "limit": "the round's median" if norm is None else f"{norm:g}",
        "trim": percent(options.get("trim")),
        "byzantine": options.get("byzantine"),
    }
    return RULES[rule.kind].format_map(values)


def measuring_sentence(config: RunConfig, round: int) -> str | None:
    """What a round without training is for; None for one in which clients train, or where it is not known."""
    if round < 1:
        return None
    try:
        algorithm = load_algorithm(config.algorithm)
    except InvalidConfiguration:  # somebody's own that is not installed here any more
        return None
    if config.calibration is not None and config.calibrates(round):
        return _calibrating_sentence(config.calibration)
    if algorithm.trains(round):
        return None
    means = " Weights and losses below are of what was measured; no model is averaged by them."
    if isinstance(algorithm, FedFm):
        return (
            "A measuring round of FedFM: no client trains, and the model stays as it is, bit for bit. Each "
            "sums up by class what its examples look like to the model; the means over all clients are the "
            f"anchors to which the next round's training draws the features.{means}"
        )
    return f"A measuring round: no client trains, each tells what it measured of the model.{means}"


def _calibrating_sentence(options: Calibration) -> str:
    """What the last round of a run with a calibration does."""
    epochs = counted(options.epochs, "epoch")
    return (
        "The calibrating round (CCVR): no client trains. Each sums up by class what its examples look like "
        "to the model, and these sums give the mean and the covariance of each class over all clients. From "
        "each class's Gaussian the coordinator draws virtual features, "
        f"{amount(options.virtual_features)} a class on average and more of the more frequent ones, and "
        f"trains the classifier on them for {epochs}. All else of the model stays as it is, bit for bit. "
        "Weights and losses below are of what was measured; no model is averaged by them."
    )


def travelling_sentence(config: RunConfig, round: int) -> str | None:
    """What becomes of the models of a round, in a run that does not average in every one; otherwise None."""
    if config.average_every == 1 or round < 1:
        return None
    if config.averages(round):
        return "An average: what this round's model is, all clients start from next."
    if round == config.rounds:
        return "The run ends between two averages: its model is what the models of its clients average to."
    following = round + config.average_every - round % config.average_every
    until = f"round {following}" if following <= config.rounds else f"the run ends with round {config.rounds}"
    return (
        "No average yet: each model goes on to another client as it is, until "
        f"{until}. This round's model is what they would average to, and only scored. A weight below "
        "adds to what the model that the client trained will count."
    )


def cap_words(rows: Sequence[LedgerRow], largest: float | None) -> str | None:
    """What the run's cap does to the round's weights; nothing if there is no cap."""
    if largest is None:
        return None
    weighed = sum(bool(row.uncapped_weight) for row in rows)
    cap = f"No weight is above {percent(largest)}"
    if weighed and not is_feasible(weighed, largest):
        return (
            f"{cap} where that is possible. The {weighed} weights of this round could not sum to 100 % so, "
            "they are equal instead."
        )
    return f"{cap}: what is cut off goes to the others, in proportion to their weights."


_STEPS: Mapping[Step, str] = {
    "advertise": "1 of 5: clients send the public keys of this attempt, signed with their identity keys",
    "share": "2 of 5: each client splits its keys among the others, sealed for each of them",
    "upload": "3 of 5: clients train, and upload their updates hidden by masks",
    "agree": "4 of 5: clients sign whose uploads are in the sum",
    "unmask": "5 of 5: clients send the shares that remove the masks of the sum, and of nothing else",
}


def step_sentence(round: RoundView) -> str | None:
    """Where a secure sum is, or what came of it; None where updates arrive in clear."""
    if round.secure is None:
        return None
    if round.status is RoundStatus.COMPLETED:
        return "The sum was unmasked; it is all that is known of the updates in it."
    if round.status is RoundStatus.ABANDONED:
        return "Nothing was unmasked in this attempt. The next one has fresh keys."
    if round.status is RoundStatus.AGGREGATING:
        return "All steps are taken, the sum is being unmasked."
    return f"Step {_STEPS[round.secure.step]}."


def sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    """One client's weight in plain words, from the stored numbers of its ledger row."""
    if row.uncapped_weight is None or row.weight is None:
        return _weighting_sentence(row, rows, weighting)
    given = _weighting_sentence(row.model_copy(update={"weight": row.uncapped_weight}), rows, weighting)
    if row.weight == row.uncapped_weight:
        return given
    return f"{given} With the run's cap it is {percent(row.weight, 2)}."


def _weighting_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    if not row.included:
        return f"Not in the model: {row.reason or f'the client {plain(row.status)}'}."
    if row.weight is None:
        return "No weight yet: the round has not been aggregated."
    return words_of(weighting).sentence(row, rows, weighting)
