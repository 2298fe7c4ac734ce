"""What the pages say about each weighting, by its kind: name, formula, legend, columns, and sentences.

A kind or an option without its words fails a test, not a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.pages.words import amount, number, percent
from shared.discrepancy import Metric
from shared.schemas import LedgerRow
from shared.texts import format_count
from shared.weightings.base import AskedTarget, Weighting

__all__ = ["INSTEAD", "OWN", "WORDS", "Column", "WeightingWords", "scores_sum", "words_of"]


@dataclass(frozen=True, slots=True)
class Column:
    """A number of the ledger that this weighting has; ``title`` stands over it."""

    title: str
    value: Callable[[LedgerRow], float | None]


@dataclass(frozen=True, slots=True)
class WeightingWords:
    """``name``, ``formula`` and ``legend`` are templates over what ``values`` makes of the weighting.

    ``sentence`` makes a client's weight of its row, all rows of the round and the weighting. ``columns``
    stand between n_k and p_k.
    """

    name: str
    formula: str
    legend: str
    sentence: Callable[[LedgerRow, Sequence[LedgerRow], Any], str]
    columns: tuple[Column, ...] = ()
    values: Callable[[Any], dict[str, str]] = lambda weighting: {}


def words_of(weighting: Weighting) -> WeightingWords:
    """The words of its kind; one's own has some that say so."""
    return WORDS.get(weighting.kind, OWN)


def scores_sum(rows: Sequence[LedgerRow]) -> float:
    """Sum of the scores above zero: the divisor of every weight."""
    return math.fsum(max(row.score, 0.0) for row in rows if row.included and row.score is not None)


def _detail(name: str) -> Callable[[LedgerRow], float | None]:
    return lambda row: row.details.get(name)


def _divided(row: LedgerRow, rows: Sequence[LedgerRow]) -> str:
    total = number(scores_sum(rows))
    return f"= {number(row.score)}, divided by the sum of scores {total} gives {percent(row.weight, 2)}."


_SCORE = Column("Score", lambda row: row.score)
_RAW = Column("raw d", lambda row: row.discrepancy)


# ---------------------------------------------------------------- sizes, uniform


def _size_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    total = sum(other.examples for other in rows if other.included)
    return f"{amount(row.examples)} of {amount(total)} examples give {percent(row.weight, 2)}."


def _uniform_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    clients = sum(other.included for other in rows)
    return f"One of {format_count(clients, 'client')} gives {percent(row.weight, 2)}."


_NO_DISCREPANCY = (
    "This weighting does not use label distributions, so no client submits a discrepancy "
    "and its columns are left out."
)
_SIZES = WeightingWords(
    name="Sizes (FedAvg)",
    formula="pₖ = examples of the client ÷ examples of the round",
    legend=_NO_DISCREPANCY,
    sentence=_size_sentence,
)
_UNIFORM = WeightingWords(
    name="Uniform",
    formula="pₖ = 1 ÷ number of clients in the round",
    legend=_NO_DISCREPANCY,
    sentence=_uniform_sentence,
)


# ---------------------------------------------------------------- Disco, entropy


def _disco_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    if row.discrepancy is not None and math.isinf(row.discrepancy):
        return "It holds a class that the target does not have: its discrepancy is infinite, its weight 0."
    if row.size_share is None or row.discrepancy_share is None or row.score is None:
        return f"Weight {percent(row.weight, 2)}."
    sum_ = (
        f"{number(row.size_share)} {_minus(weighting.a)} × {number(row.discrepancy_share)} "
        f"{_plus(weighting.b)} = {number(row.score)}"
    )
    if max(other.score for other in rows if other.included and other.score is not None) <= 0:
        return f"{sum_}, not above zero, like all others; the fallback gives {percent(row.weight, 2)}."
    if row.score <= 0:
        return f"{sum_}, not above zero, so it counts as 0 and the update gets no weight."
    return f"{sum_}, divided by the sum of scores {number(scores_sum(rows))} gives {percent(row.weight, 2)}."


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
INSTEAD: Final[Mapping[str, str]] = {
    "sizes": "the run falls back to sizes",
    "uniform": "the run falls back to equal weights",
    "raise": "the round was given up",
}


def _name_target(target: AskedTarget) -> str:
    if not isinstance(target, str):
        return "the run's target distribution"
    if target == "uniform":
        return "the uniform distribution"
    return "the distribution of all trainers' labels together"


def _disco_values(weighting: Any) -> dict[str, str]:
    return {
        "a": f"{weighting.a:g}",
        "b": f"{weighting.b:g}",
        "minus_a": _minus(weighting.a),
        "plus_b": _plus(weighting.b),
        "metric": _METRICS.get(weighting.metric, f"distance {weighting.metric}"),
        "target": _name_target(weighting.target),
        "normalised": _NORMALISED[weighting.normalise],
    }


_DISCO = WeightingWords(  # FedDisco, eq. 6
    name="Disco, a = {a}, b = {b}",
    formula="pₖ = max(nₖ {minus_a} × dₖ {plus_b}, 0) ÷ sum over the round",
    legend=(
        "nₖ is the client's share of the round's examples. dₖ is the {metric} "
        "between its labels and {target}, {normalised}. "
        "pₖ is the weight of its update in the new model. "
        "A client may have sent dₖ with noise, which moves pₖ: the run's page says which did."
    ),
    sentence=_disco_sentence,
    columns=(_RAW, Column("dₖ", lambda row: row.discrepancy_share), _SCORE),
    values=_disco_values,
)


def _entropy_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    power = f"{number(row.discrepancy)} ÷ {weighting.temperature:g}"
    return f"{number(row.size_share)} × exp(− {power}) {_divided(row, rows)}"


_ENTROPY = WeightingWords(
    name="Entropy, temperature {temperature}",
    formula="pₖ = nₖ × exp(− dₖ ÷ {temperature}) ÷ sum over the round",
    legend=(
        "nₖ is the client's share of the round's examples. dₖ is the KL divergence of its labels from the "
        "uniform distribution: the logarithm of the number of classes less the entropy of its labels, so "
        "that the weights are those of nₖ × exp(entropy ÷ {temperature})."
    ),
    sentence=_entropy_sentence,
    columns=(_RAW, _SCORE),
    values=lambda weighting: {"temperature": f"{weighting.temperature:g}"},
)


# ---------------------------------------------------------------- losses


def _q_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    loss = number(row.details.get("loss"))
    return f"{number(row.size_share)} × {loss} to the power {weighting.q:g} {_divided(row, rows)}"


_QFEDAVG = WeightingWords(
    name="q-FedAvg, q = {q}",
    formula="pₖ = nₖ × Fₖ^{q} ÷ sum over the round",
    legend=(
        "nₖ is the client's share of the round's examples. Fₖ is the loss of the model that it received, on "
        "its own training examples. The mean update is then shortened, as the paper's step size says."
    ),
    sentence=_q_sentence,
    columns=(Column("Loss before", _detail("loss")), _SCORE),
    values=lambda weighting: {"q": f"{weighting.q:g}"},
)


def _gap_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    had, gap = number(row.details.get("before")), row.details.get("gap")
    moved = f"No gap of it is known yet, so its {had} stays"
    if gap is not None:
        moved = f"Its gap of {number(gap, sign=True)} moves {had} to {number(row.score)}"
    return f"{moved}; divided by the sum {number(scores_sum(rows))} it gives {percent(row.weight, 2)}."


_FEDDGGA = WeightingWords(
    name="FedDG-GA, step {step}",
    formula="pₖ = aₖ ÷ sum over the round; aₖ grows with the client's gap",
    legend=(
        "The gap is the loss of the model that the client received in this round less that of the model that "
        "it sent last, both on its own training examples{centred}. The largest gap moves its aₖ by {step} of "
        "an equal weight in the first rounds and by less towards the last."
    ),
    sentence=_gap_sentence,
    columns=(Column("before", _detail("before")), Column("Gap", _detail("gap")), Column("aₖ", _SCORE.value)),
    values=lambda weighting: {
        "step": f"{weighting.step:g}",
        "centred": "; the mean of the round's gaps is taken from each" if weighting.centred else "",
    },
)


# ---------------------------------------------------------------- updates


def _angle_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    angle = number(row.details.get("mean_angle"))
    return f"{number(row.size_share)} × exp(f({angle})) {_divided(row, rows)}"


_FEDADP = WeightingWords(
    name="FedAdp, α = {alpha}",
    formula="pₖ = nₖ × exp(f(θₖ)) ÷ sum over the round; f(θ) = {alpha} × (1 − exp(−exp(−{alpha} × (θ − 1))))",
    legend=(
        "nₖ is the client's share of the round's examples. θₖ is the angle, in radians, between its update "
        "and the mean update of the round, averaged over the rounds that it took part in."
    ),
    sentence=_angle_sentence,
    columns=(
        Column("Angle", _detail("angle")),
        Column("θₖ", _detail("mean_angle")),
        _SCORE,
    ),
    values=lambda weighting: {"alpha": f"{weighting.alpha:g}"},
)


def _awa_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    apart, distance = (number(row.details.get(name)) for name in ("apart", "distance"))
    return f"{apart} from the mean update and {distance} from the round's start: {percent(row.weight, 2)}."


_DISTANCES: Final[Mapping[str, str]] = {
    "cosine": "one less the cosine of the angle between them",
    "squared": "the mean squared difference of their numbers",
}
_FEDAWA = WeightingWords(
    name="FedAWA",
    formula="p = softmax(t); t falls along Σ pₖ × distance(modelₖ, start) + Σ pₖ × |updateₖ − mean update|",
    legend=(
        "t begins with the logarithm of the clients' sizes, is kept from round to round, and makes {steps} "
        "of length {rate} in each. The distance of a client's model from the round's start is {distance}."
    ),
    sentence=_awa_sentence,
    columns=(
        Column("from start", _detail("distance")),
        Column("from mean", _detail("apart")),
    ),
    values=lambda weighting: {
        "steps": format_count(weighting.steps, "step"),
        "rate": f"{weighting.learning_rate:g}",
        "distance": _DISTANCES[weighting.distance],
    },
)


def _shrunk_values(weighting: Any) -> dict[str, str]:
    inner, values = words_of(weighting.mean), words_of(weighting.mean).values(weighting.mean)
    return {
        "inner": inner.name.format_map(values),
        "inner_formula": inner.formula.format_map(values),
        "inner_legend": inner.legend.format_map(values),
        "beta": f"{weighting.beta:g}",
        "least": f"{weighting.least:g}",
        "most": f"{weighting.most:g}",
    }


def _shrunk_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    return words_of(weighting.mean).sentence(row, rows, weighting.mean)


_FEDLWS = WeightingWords(
    name="FedLWS over {inner}",
    formula="{inner_formula}; each layer of the mean × |start| ÷ (|start| + τ × |mean update|)",
    legend=(
        "{inner_legend} τ of a layer is {beta} times the clients' mean distance from their mean update, "
        "at least {least} and at most {most}."
    ),
    sentence=_shrunk_sentence,
    values=_shrunk_values,
)


def _nash_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    if row.score is None or row.score <= 0:
        return f"Its update does not move the model; weight {percent(row.weight, 2)}."
    return f"α {_divided(row, rows).removeprefix('= ')}"


_NASHMTL = WeightingWords(
    name="Nash-MTL",
    formula="pₖ = αₖ ÷ sum over the round; αₖ × (updateₖ · Σ αⱼ × updateⱼ) = 1 for every client",
    legend=(
        "The mean update goes where the product of all clients' gains is largest: Nash's solution of a "
        "bargain over its direction. A client's gain is the inner product of its update with the mean "
        "update. Sizes do not matter."
    ),
    sentence=_nash_sentence,
    columns=(Column("αₖ", _SCORE.value), Column("Gain", _detail("gain"))),
)


# ---------------------------------------------------------------- counts (in a simulation only), data


def _weight_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    return f"Weight {percent(row.weight, 2)}."


_FEDPALS = WeightingWords(
    name="FedPALS, penalty {penalty}",
    formula="p minimises |target − Σ pₖ × Dₖ|² + {penalty} × Σ pₖ² ÷ nₖ, with pₖ ≥ 0 and Σ pₖ = 1",
    legend=(
        "nₖ is the client's share of the round's examples, Dₖ its share of each class; "
        "the target is {target}."
    ),
    sentence=_weight_sentence,
    columns=(Column("from target", _detail("distance")),),
    values=lambda weighting: {
        "penalty": f"{weighting.penalty:g}",
        "target": "the uniform distribution" if weighting.target == "uniform" else "the run's own",
    },
)


def _learned_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    """Of the logits as they are stored; they were of any size while they were learned."""
    learned = {other.index: other.details.get("logit") for other in rows if other.included}
    known = {index: value for index, value in learned.items() if value is not None}
    own = known.get(row.index)
    if own is None:
        return _weight_sentence(row, rows, weighting)
    largest = max(known.values())
    total = math.fsum(math.exp(value - largest) for value in known.values())
    of_largest = f"e^{number(own)} is {number(math.exp(own - largest))} of the round's largest"
    return f"{of_largest}, divided by {number(total)}, the sum of these, gives {percent(row.weight, 2)}."


_FEDLAW = WeightingWords(
    name="FedLAW",
    formula="new model = γ × Σ softmax(l)ₖ × modelₖ; γ and l are learned on {examples} examples",
    legend=(
        "The examples belong to no client. In each round l begins with the logarithm of the clients' sizes, "
        "γ with 1."
    ),
    sentence=_learned_sentence,
    columns=(Column("l", _detail("logit")),),
    values=lambda weighting: {"examples": amount(weighting.examples)},
)


# ---------------------------------------------------------------- all of them


def _own_sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Any) -> str:
    numbers = {"score": row.score, **row.details}
    said = ", ".join(f"{name.replace('_', ' ')} {number(v)}" for name, v in numbers.items() if v is not None)
    return f"{said}: {percent(row.weight, 2)}." if said else f"Weight {percent(row.weight, 2)}."


OWN: Final = WeightingWords(
    name="{kind}",
    formula="by a rule of your own, {kind}",
    legend="It is installed at the coordinator; what it made of each client is below.",
    sentence=_own_sentence,
    columns=(_SCORE,),
    values=lambda weighting: {"kind": weighting.kind},
)
WORDS: Final[Mapping[str, WeightingWords]] = {
    "sizes": _SIZES,
    "uniform": _UNIFORM,
    "disco": _DISCO,
    "entropy": _ENTROPY,
    "fedpals": _FEDPALS,
    "qfedavg": _QFEDAVG,
    "feddgga": _FEDDGGA,
    "fedadp": _FEDADP,
    "fedawa": _FEDAWA,
    "fedlws": _FEDLWS,
    "fedlaw": _FEDLAW,
    "nashmtl": _NASHMTL,
}


def _plus(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):g}"


def _minus(value: float) -> str:
    return f"− {value:g}"
