"""Why a client got its weight, written out with the round's own numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.pages.words import amount, number, percent, plain
from shared.config import DiscoWeighting, Weighting
from shared.schemas import LedgerRow

__all__ = ["fallback", "formula", "legend", "scores_sum", "sentence", "weighting_name"]

_OVER = {
    "round": "divided by the sum over the clients of this round whose updates arrived",
    "all_clients": "divided by the sum over all enrolled trainers",
    "none": "taken as submitted, not normalised",
}
_METRICS = {"kl": "KL divergence", "l1": "L1 distance", "l2": "L2 distance", "cosine": "cosine distance"}


def weighting_name(weighting: Weighting) -> str:
    """The weighting on one line: ``Disco, a = 0.5, b = 0.1``."""
    if isinstance(weighting, DiscoWeighting):
        return f"Disco, a = {weighting.a:g}, b = {weighting.b:g}"
    return {"sizes": "Sizes (FedAvg)", "uniform": "Uniform"}[weighting.kind]


def formula(weighting: Weighting) -> str:
    """The rule of the round with its a and b put in (FedDisco, eq. 6)."""
    if isinstance(weighting, DiscoWeighting):
        return f"pₖ = max(nₖ {_minus(weighting.a)} × dₖ {_plus(weighting.b)}, 0) ÷ sum over the round"
    if weighting.kind == "sizes":
        return "pₖ = examples of the client ÷ examples of the round"
    return "pₖ = 1 ÷ number of clients in the round"


def legend(weighting: Weighting) -> str:
    """What the letters of :func:`formula` stand for."""
    if not isinstance(weighting, DiscoWeighting):
        return (
            "This run does not look at label distributions, so no client submits a discrepancy "
            "and the columns about it are left out."
        )
    target = "the uniform distribution" if weighting.target == "uniform" else "the run's target distribution"
    return (
        f"nₖ is the client's share of the round's examples. dₖ is the {_METRICS[weighting.metric]} "
        f"between its labels and {target}, {_OVER[weighting.normalise]}. "
        "pₖ is the weight of its update in the new model."
    )


def scores_sum(rows: Sequence[LedgerRow]) -> float:
    """Sum of the scores above zero: the divisor of every weight."""
    return math.fsum(max(row.score, 0.0) for row in rows if row.included and row.score is not None)


def fallback(rows: Sequence[LedgerRow], weighting: Weighting) -> str | None:
    """A sentence when no score was above zero and the weights come from elsewhere; else nothing."""
    scores = [row.score for row in rows if row.included and row.score is not None]
    if not isinstance(weighting, DiscoWeighting) or not scores or max(scores) > 0:
        return None
    instead = {"sizes": "sizes", "uniform": "equal weights", "raise": "nothing, and the round was given up"}
    return f"No score of this round is above zero; the run falls back to {instead[weighting.on_all_zero]}."


def sentence(row: LedgerRow, rows: Sequence[LedgerRow], weighting: Weighting) -> str:
    """One client's weight in plain words, from the stored numbers of its ledger row."""
    if not row.included:
        return f"Not in the model: {row.reason or f'the client {plain(row.status)}'}."
    if row.weight is None:
        return "No weight yet: the round has not been aggregated."
    if isinstance(weighting, DiscoWeighting):
        return _disco(row, rows, weighting)
    if weighting.kind == "sizes":
        total = sum(other.examples for other in rows if other.included)
        return f"{amount(row.examples)} of {amount(total)} examples give {percent(row.weight, 2)}."
    return f"One of {sum(other.included for other in rows)} clients gives {percent(row.weight, 2)}."


def _disco(row: LedgerRow, rows: Sequence[LedgerRow], weighting: DiscoWeighting) -> str:
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


def _plus(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):g}"


def _minus(value: float) -> str:
    return f"− {value:g}"
