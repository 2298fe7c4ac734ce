"""Why a client got its weight, written out with the round's own numbers.

Everything that the pages say about a weighting is in :data:`WORDS`, by its kind, and in the tables of its
options (metric, target, normalisation, what happens when no score is above zero). A kind or an option
without its words fails a test, not a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.pages.words import amount, number, percent, plain
from shared.capping import is_feasible
from shared.config import ANYONE, DiscoWeighting, Members, Metric, RunConfig, Weighting
from shared.schemas import LedgerRow

__all__ = [
    "WORDS",
    "WeightingWords",
    "admission",
    "cap_words",
    "fallback",
    "formula",
    "legend",
    "scores_sum",
    "sentence",
    "weighting_name",
]


@dataclass(frozen=True, slots=True)
class WeightingWords:
    """``name``, ``formula`` and ``legend`` are templates over :func:`_values`.

    ``sentence`` makes a client's weight of its row, all rows of the round and the weighting.
    """

    name: str
    formula: str
    legend: str
    sentence: Callable[[LedgerRow, Sequence[LedgerRow], Any], str]


def _size_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    total = sum(other.examples for other in rows if other.included)
    return f"{amount(row.examples)} of {amount(total)} examples give {percent(row.weight, 2)}."


def _uniform_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    return f"One of {sum(other.included for other in rows)} clients gives {percent(row.weight, 2)}."


def _disco_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: DiscoWeighting) -> str:
    if row.discrepancy is not None and math.isinf(row.discrepancy):
        return "It holds a class that the target does not have: its discrepancy is infinite, its weight 0."
    if row.size_share is None or row.discrepancy_share is None or row.score is None:
        return f"Weight {percent(row.weight, 2)}."
    sum_ = (
        f"{number(row.size_share)} {_minus(weighting.a)} × {number(row.discrepancy_share)} "
        f"{_plus(weighting.b)} = {number(row.score)}"
    )
    if fallback(rows, weighting):
        return f"{sum_}, not above zero, like all others; the fallback gives {percent(row.weight, 2)}."
    if row.score <= 0:
        return f"{sum_}, not above zero, so it counts as 0 and the update gets no weight."
    return f"{sum_}, divided by the sum of scores {number(scores_sum(rows))} gives {percent(row.weight, 2)}."


_NO_DISCREPANCY = (
    "This weighting does not use label distributions, so no client submits a discrepancy "
    "and its columns are left out."
)
WORDS: Final[Mapping[str, WeightingWords]] = {
    "sizes": WeightingWords(
        name="Sizes (FedAvg)",
        formula="pₖ = examples of the client ÷ examples of the round",
        legend=_NO_DISCREPANCY,
        sentence=_size_sentence,
    ),
    "uniform": WeightingWords(
        name="Uniform",
        formula="pₖ = 1 ÷ number of clients in the round",
        legend=_NO_DISCREPANCY,
        sentence=_uniform_sentence,
    ),
    "disco": WeightingWords(  # FedDisco, eq. 6
        name="Disco, a = {a}, b = {b}",
        formula="pₖ = max(nₖ {minus_a} × dₖ {plus_b}, 0) ÷ sum over the round",
        legend=(
            "nₖ is the client's share of the round's examples. dₖ is the {metric} "
            "between its labels and {target}, {normalised}. "
            "pₖ is the weight of its update in the new model."
        ),
        sentence=_disco_sentence,
    ),
}
_METRICS: Final[Mapping[Metric, str]] = {
    "kl": "KL divergence",
    "l1": "L1 distance",
    "l2": "L2 distance",
    "cosine": "cosine distance",
}
_NORMALISED: Final[Mapping[str, str]] = {
    "round": "divided by the sum over the clients of this round whose updates arrived",
    "all_clients": "divided by the sum over all enrolled trainers",
    "none": "taken as submitted, not normalised",
}
_INSTEAD: Final[Mapping[str, str]] = {
    "sizes": "the run falls back to sizes",
    "uniform": "the run falls back to equal weights",
    "raise": "the round was given up",
}


def _values(weighting: Weighting) -> dict[str, str]:
    """What the templates of :data:`WORDS` may name."""
    if not isinstance(weighting, DiscoWeighting):
        return {}
    uniform = weighting.target == "uniform"
    return {
        "a": f"{weighting.a:g}",
        "b": f"{weighting.b:g}",
        "minus_a": _minus(weighting.a),
        "plus_b": _plus(weighting.b),
        "metric": _METRICS[weighting.metric],
        "target": "the uniform distribution" if uniform else "the run's target distribution",
        "normalised": _NORMALISED[weighting.normalise],
    }


def weighting_name(weighting: Weighting) -> str:
    """The weighting on one line: ``Disco, a = 0.5, b = 0.1``."""
    return WORDS[weighting.kind].name.format_map(_values(weighting))


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
    return WORDS[weighting.kind].formula.format_map(_values(weighting))


def legend(weighting: Weighting) -> str:
    """What the letters of :func:`formula` stand for."""
    return WORDS[weighting.kind].legend.format_map(_values(weighting))


def scores_sum(rows: Sequence[LedgerRow]) -> float:
    """Sum of the scores above zero: the divisor of every weight."""
    return math.fsum(max(row.score, 0.0) for row in rows if row.included and row.score is not None)


def fallback(rows: Sequence[LedgerRow], weighting: Weighting) -> str | None:
    """A sentence when no score was above zero and the weights come from elsewhere; else nothing."""
    scores = [row.score for row in rows if row.included and row.score is not None]
    if not isinstance(weighting, DiscoWeighting) or not scores or max(scores) > 0:
        return None
    return f"No score of this round is above zero; {_INSTEAD[weighting.on_all_zero]}."


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
    return WORDS[weighting.kind].sentence(row, rows, weighting)


def _plus(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):g}"


def _minus(value: float) -> str:
    return f"− {value:g}"
