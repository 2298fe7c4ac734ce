"""Scores of a model by name: which way is better, several evaluators' as one, the best round.

``accuracy`` and ``loss`` are in every evaluation; all others are in its ``extra``, by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from shared.metric_names import OF_A_CLASS, OVER_ALL

if TYPE_CHECKING:
    from shared.config import ScoreRule
    from shared.schemas import Metrics

__all__ = [
    "Standing",
    "combine",
    "describe_score",
    "find_direction",
    "find_score",
    "is_better",
    "is_lower_better",
    "name_score",
    "pool",
    "rank",
    "standing",
    "summarise",
    "weighted_mean",
]

_LOWER = ("loss", "error")
_SHARES = ("accuracy", "f1", "auroc", "sensitivity", "specificity", "precision", "recall")


def is_lower_better(name: str) -> bool:
    """Losses and errors, by their name; every other score is better when it is higher.

    >>> [is_lower_better(name) for name in ("loss", "calibration_error", "auroc")]
    [True, True, False]
    """
    return any(word in _kind(name) for word in _LOWER)


def find_direction(name: str) -> Literal["higher", "lower"] | None:
    """Which values are better; None: a task's own score, of which nothing but its name is known.

    >>> [find_direction(name) for name in ("macro_f1", "own_error", "perplexity")]
    ['higher', 'lower', None]
    """
    if is_lower_better(name):
        return "lower"
    known = ("accuracy", *OVER_ALL, *OF_A_CLASS)
    return "higher" if name.partition(":")[0] in known else None


def _kind(name: str) -> str:
    """Without the class that it is about: ``sensitivity`` of ``sensitivity:melanoma``."""
    return name.partition(":")[0].lower()


def is_better(name: str, value: float, than: float, by: float = 0.0) -> bool:
    """Whether ``value`` is better by more than ``by``."""
    return than - value > by if is_lower_better(name) else value - than > by


def find_score(metrics: Metrics, name: str | None) -> float | None:
    """The score called ``name``; without a name the accuracy, or the loss where there is none."""
    if name == "accuracy" or (name is None and metrics.accuracy is not None):
        return metrics.accuracy
    if name in ("loss", None):
        return metrics.loss
    return metrics.extra.get(str(name))


def name_score(metrics: Metrics, name: str | None) -> str:
    """The score that :func:`find_score` gives for the name."""
    return name or ("accuracy" if metrics.accuracy is not None else "loss")


def pool(evaluations: Sequence[Metrics], name: str | None, rule: ScoreRule) -> float | None:
    """Several evaluators' score of one model as one, by the run's rule; None: somebody has none."""
    return combine([(find_score(each, name), each.examples) for each in evaluations], rule)


def combine(found: Sequence[tuple[float | None, int]], rule: ScoreRule) -> float | None:
    """Scores and examples as one score; None: there is none, or one of them is no number."""
    known = [(value, examples) for value, examples in found if value is not None]
    return summarise(known, rule) if known and len(known) == len(found) else None


def summarise(scores: Sequence[tuple[float, int]], rule: ScoreRule) -> float:
    """One number of at least one (score, examples); the same bits in whatever order they come.

    ``median``: one evaluator of three or more that says anything moves it no further than the others' scores
    reach. ``weighted``: the mean by the evaluators' sizes.

    >>> summarise([(0.11, 100), (1.0, 2**53), (0.12, 100)], "median")
    0.12
    """
    if len(scores) == 1:
        return scores[0][0]
    return _median([value for value, _ in scores]) if rule == "median" else weighted_mean(scores)


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    if len(values) % 2:
        return ordered[middle]
    return weighted_mean([(value, 1) for value in ordered[middle - 1 : middle + 1]])


def weighted_mean(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean of (value, weight), of which one has a weight. Of finite values it is finite, however large.

    A model that diverges may honestly have a loss of 1e308, and a liar may say so.

    >>> weighted_mean([(1e308, 1), (1e308, 3)]), weighted_mean([(1e308, 1), (-1e308, 1)])
    (1e+308, 0.0)
    """
    try:
        mean = math.fsum(value * weight for value, weight in pairs) / math.fsum(weight for _, weight in pairs)
    except (OverflowError, ValueError):  # beyond the largest float, on one side or on both
        mean = math.nan
    if math.isfinite(mean) or not all(math.isfinite(value) for value, _ in pairs):
        return mean
    exact = [(Fraction(value), Fraction(weight)) for value, weight in pairs]  # slow, and no float overflows
    return float(sum(value * weight for value, weight in exact) / sum(weight for _, weight in exact))


def rank(scores: Mapping[int, float | None], name: str) -> list[int]:
    """Rounds that have a score, the best first; of equals the earlier one."""
    known = {number: value for number, value in scores.items() if value is not None}
    sign = 1 if is_lower_better(name) else -1
    return sorted(known, key=lambda number: (sign * known[number], number))


@dataclass(frozen=True)
class Standing:
    """The best round so far, its score, and how many scored rounds came after it without being better."""

    best_round: int
    best: float
    since: int


def standing(scores: Iterable[tuple[int, float | None]], name: str, by: float = 0.0) -> Standing | None:
    """Of rounds in their order; better is who is better by more than ``by``. None: no round has a score.

    A round that was scored but has no number (the loss is not finite) counts as not better.

    >>> standing([(1, 0.5), (2, 0.7), (3, 0.6), (4, None)], "accuracy")
    Standing(best_round=2, best=0.7, since=2)
    """
    found: Standing | None = None
    for number, value in scores:
        if value is not None and (found is None or is_better(name, value, found.best, by)):
            found = Standing(number, value, 0)
        elif found is not None:
            found = Standing(found.best_round, found.best, found.since + 1)
    return found


def describe_score(name: str, value: float) -> str:
    """For a sentence: shares in per cent, all else with four digits.

    >>> describe_score("accuracy", 0.3151), describe_score("loss", 1.23456)
    ('accuracy 31.51 %', 'loss 1.235')
    """
    is_share = any(word in _kind(name) for word in _SHARES) and 0 <= value <= 1
    return f"{name} {100 * value:.2f} %" if is_share else f"{name} {value:.4g}"
