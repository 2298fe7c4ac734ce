"""Runs beside each other, as numbers: series of like runs, what differs, differences to a baseline. Pure.

A *series* is one run, or all runs whose configurations differ in nothing but name, tags and seed. Its
curve is the mean over its runs of what the evaluators measured; a gain is the mean difference to the
baseline's curve.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from server.pages.charts import LARGEST
from shared.schemas import ComparedRun
from shared.scores import find_direction, summarise
from shared.statistics import Interval, after_warm_up, bootstrap
from shared.texts import format_count

__all__ = ["Gain", "Series", "differing", "find_gain", "make_series"]

Curve = Mapping[int, float]

_OF_ONE_RUN = ("name", "tags", "seed", "partition.seed")
"""What may differ between the runs of a series."""
_SIGNS = {"higher": 1, "lower": -1, None: None}


@dataclass(frozen=True)
class Series:
    """Like runs. ``curves`` are their values by round, in the order of ``runs``.

    ``measure`` is accuracy, loss, or the name of another score.
    """

    runs: tuple[ComparedRun, ...]
    measure: str

    @property
    def name(self) -> str:
        """The run's, or of several the first's and how many more there are."""
        more = len(self.runs) - 1
        return self.runs[0].run + (f" and {format_count(more, 'more seed')}" if more else "")

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """The configuration flat, ``weighting.a`` to its value as JSON."""
        return _flatten(self.runs[0].config)

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        return tuple(_curve(run, self.measure) for run in self.runs)

    @cached_property
    def mean(self) -> Curve:
        """Over the runs that have a value of the round, from round 0, the initial model."""
        return {number: math.fsum(values) / len(values) for number, values in self._by_round.items()}

    @cached_property
    def band(self) -> Sequence[tuple[int, float, float]]:
        """One sample standard deviation below and above the mean, where two runs or more have a value."""
        found = []
        for number, values in self._by_round.items():
            if len(values) > 1:
                mean = self.mean[number]
                deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
                found.append((number, mean - deviation, mean + deviation))
        return found

    @cached_property
    def trained(self) -> Curve:
        """Without the initial model."""
        return {number: value for number, value in self.mean.items() if number}

    @property
    def last(self) -> tuple[int, float] | None:
        return max(self.trained.items(), default=None)

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """The first of the best rounds; None too where nobody knows which values are better."""
        sign = self._sign
        if sign is None:
            return None
        return max(self.trained.items(), key=lambda at: (sign * at[1], -at[0]), default=None)

    def reaches(self, target: float) -> int | None:
        """The first round that is as good as ``target``; None if none is, or nobody knows what is good."""
        sign = self._sign
        if sign is None:
            return None
        for number, value in sorted(self.trained.items()):
            if sign * value >= sign * target:
                return number
        return None

    @property
    def _sign(self) -> int | None:
        """1 where more is better, -1 where less is."""
        return _SIGNS[find_direction(self.measure)]

    @cached_property
    def _by_round(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for curve in self.curves:
            for number, value in curve.items():
                found.setdefault(number, []).append(value)
        return dict(sorted(found.items()))


def _curve(run: ComparedRun, measure: str) -> Curve:
    """By round, the evaluators' scores as one by the run's rule."""
    found: dict[int, list[tuple[float, int]]] = {}
    for score in run.scores:
        if measure in ("accuracy", "loss"):
            value = score.accuracy if measure == "accuracy" else score.loss
        else:
            value = score.extra.get(measure)
        if value is not None and abs(value) <= LARGEST:
            found.setdefault(score.round, []).append((value, score.examples))
    rule = run.config.get("combine_scores", "median")
    return {number: summarise(pairs, rule) for number, pairs in found.items()}


def _flatten(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {
            name: text
            for key, item in value.items()
            for name, text in _flatten(item, f"{path}.{key}" if path else str(key)).items()
        }
    return {path: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def make_series(runs: Sequence[ComparedRun], measure: str, *, grouped: bool) -> list[Series]:
    """In the order of their first runs; ``grouped``: those like but for name, tags and seed are one."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        flat = _flatten(run.config)
        kept = {path: text for path, text in flat.items() if path not in _OF_ONE_RUN}
        groups.setdefault(json.dumps(kept, sort_keys=True) if grouped else run.run, []).append(run)
    return [Series(tuple(group), measure) for group in groups.values()]


def differing(series: Sequence[Series], *, grouped: bool) -> list[str]:
    """The settings in which they differ, in the order of the configuration; never the name.

    Seed and tags are among them only where runs stand alone.
    """
    hidden = _OF_ONE_RUN if grouped else ("name",)
    paths = dict.fromkeys(path for one in series for path in one.settings)
    return [
        path for path in paths if path not in hidden and len({one.settings.get(path) for one in series}) > 1
    ]


@dataclass(frozen=True)
class Gain:
    """Mean difference to the baseline over the rounds that both have; ``interval`` for 95 %.

    ``pairs`` is how many pairs of runs with the same seed it rests on; 0: the seeds are others, so the
    means are compared and there is no interval.
    """

    value: float
    interval: Interval | None
    rounds: int
    pairs: int

    def verdict(self, measure: str) -> str:
        """``ahead``, ``behind`` or ``level`` by the interval; no word without one.

        ``higher`` or ``lower`` where nobody knows which of them is better.
        """
        if self.interval is None:
            return ""
        above, below = self.interval.low > 0, self.interval.high < 0
        direction = find_direction(measure)
        more, less = {
            "higher": ("ahead", "behind"),
            "lower": ("behind", "ahead"),
            None: ("higher", "lower"),
        }[direction]
        return more if above else less if below else "level"


def find_gain(series: Series, baseline: Series) -> Gain | None:
    """None where they have no round in common.

    Runs are paired by seed; of several with the same seed the first counts. The first 20 rounds are left out
    if ten or more remain, as in the tables of results (:func:`shared.statistics.after_warm_up`).
    """
    mine, others = _by_seed(series), _by_seed(baseline)
    paired = [_differences(mine[seed], others[seed]) for seed in mine if seed in others]
    paired = [differences for differences in paired if differences]
    if not paired:
        means = _differences(series.mean, baseline.mean)
        return Gain(statistics.fmean(means), None, len(means), 0) if means else None
    value = statistics.fmean(statistics.fmean(differences) for differences in paired)
    return Gain(value, bootstrap(paired), max(map(len, paired)), len(paired))


def _by_seed(series: Series) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for run, curve in zip(series.runs, series.curves, strict=True):
        found.setdefault(json.dumps(run.config.get("seed")), curve)
    return found


def _differences(mine: Curve, others: Curve) -> Sequence[float]:
    common = sorted(number for number in mine.keys() & others.keys() if number)
    return after_warm_up([mine[number] - others[number] for number in common])
