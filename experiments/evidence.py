"""What there is for a table: its curves by cell and seed, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from experiments.plan import Cell, PlannedRun, cells, configuration
from experiments.records import Curve, Round, files_of, read_curve
from experiments.tables import Measure, Table, load_table
from shared import statistics
from shared.statistics import Interval, Spread

__all__ = ["Evidence", "Gain", "State", "Verdict", "gather", "measured"]

Curves = Mapping[int, Curve]
State = Literal["reproduced", "reproduced in sign", "not reproduced", "partly", "not yet run"]
Verdict = Literal["ahead", "level", "behind", "too few rounds"]


@dataclass(frozen=True)
class Gain:
    """A cell against the first weighting of its row, over the seeds and rounds that both have.

    ``without`` and ``with_it`` are the means of the table's measure, ``spread`` that of its differences by
    seed. ``over`` is the spread of the mean differences after the warm-up, round by round, from round
    ``since`` on, and ``interval`` where that mean lies (95 %). ``same_as`` is an earlier method that this one
    is here, so that this is no comparison of its own; ``rounding`` where their scores differ nevertheless.
    """

    cell: Cell
    without: float
    with_it: float
    spread: Spread
    by_seed: tuple[float, ...]
    rounds: tuple[int, int]
    since: int
    over: Spread
    interval: Interval
    verdict: Verdict
    published: float | None
    same_as: str | None = None
    rounding: bool = False


@dataclass(frozen=True)
class Evidence:
    """A table and its curves: ``curves[cell][seed]``, empty where nothing was run."""

    table: Table
    curves: Mapping[Cell, Curves]

    def values(self, cell: Cell) -> dict[int, float]:
        """The table's measure by seed."""
        found = self.curves[cell]
        return {seed: measured(self.table.measure, curve) for seed, curve in found.items()}

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """Every cell against its row's first weighting, where both have a seed in common."""
        rows = [cell for cell in self.curves if cell.weighting != self._first(cell).weighting]
        return tuple(gain for cell in rows if (gain := self._gain(cell)))

    def gain(self, cell: Cell) -> Gain | None:
        """This cell's, if there is one."""
        return next((gain for gain in self.gains if gain.cell == cell), None)

    def rounds(self) -> tuple[int, int]:
        """Rounds there are, and rounds that the table asks for with all of its seeds."""
        asked = {self.file(cell, seed): self._asked(cell) for cell in self._own for seed in self._seeds()}
        there = {
            self.file(cell, seed): min(len(curve.rounds), self._asked(cell))
            for cell, found in self._own.items()
            for seed, curve in found.items()
            if seed < self.table.seeds
        }
        return sum(there.values()), sum(asked.values())

    def state(self) -> State:
        """Whether Disco was seen to help: in all comparisons, in some, in none, or not tried."""
        there, asked = self.rounds()
        if not there or self.only_borrowed:
            return "not yet run"
        ahead = [verdict == "ahead" for verdict in self.verdicts()]
        if there < asked or not ahead or (any(ahead) and not all(ahead)):
            return "partly"
        if not all(ahead):
            return "not reproduced"
        return "reproduced in sign" if self.table.sign_only else "reproduced"

    def verdicts(self) -> list[Verdict]:
        """Of each cell with Disco that has a pair, and is no earlier one's under another name."""
        return [gain.verdict for gain in self.with_disco() if gain.same_as is None]

    def with_disco(self) -> list[Gain]:
        """The gains of Disco, not those of sizes over equal weights; of tuned a and b, the choice's."""
        own = [gain for gain in self.gains if gain.cell in self._own]
        disco = [gain for gain in own if gain.cell.resolved not in ("sizes", "uniform")]
        if self.table.tune is None:
            return disco
        return [gain for gain in disco if gain.cell.weighting == self.table.chosen]

    def of_added(self) -> list[Gain]:
        """The gains of weightings that a caller added."""
        return [gain for gain in self.gains if gain.cell not in self._own]

    @cached_property
    def only_borrowed(self) -> bool:
        """Whether all that was run are runs of the table that this one borrows from."""
        if self.table.borrows is None:
            return False
        lent = {self.file(cell, 0) for cell in cells(load_table(self.table.borrows))}
        return not any(found for cell, found in self._own.items() if self.file(cell, 0) not in lent)

    def complete(self, cell: Cell) -> Curves:
        """A cell's curves of as many rounds as the table asks for."""
        asked = self._asked(cell)
        return {seed: curve for seed, curve in self.curves[cell].items() if len(curve.rounds) >= asked}

    def file(self, cell: Cell, seed: int) -> Path:
        return PlannedRun(cell, seed, configuration(cell, seed), 0).file

    @cached_property
    def _own(self) -> Mapping[Cell, Curves]:
        """The curves of what the table itself asks for."""
        is_added = self.table.is_added
        return {c: found for c, found in self.curves.items() if not is_added(c.method, c.weighting)}

    def _seeds(self) -> range:
        return range(self.table.seeds)

    def _asked(self, cell: Cell) -> int:
        rounds = configuration(cell, 0).rounds
        return min(rounds, self.table.rounds or rounds)

    def _first(self, cell: Cell) -> Cell:
        return Cell(cell.setting, cell.method, self.table.weightings_of(cell.method)[0])

    def _gain(self, cell: Cell) -> Gain | None:
        base, ours = self.curves[self._first(cell)], self.curves[cell]
        pairs = {seed: _same_length(base[seed], ours[seed]) for seed in sorted(base.keys() & ours.keys())}
        if not pairs:
            return None
        measure = self.table.measure
        first = {seed: measured(measure, pair[0]) for seed, pair in pairs.items()}
        second = {seed: measured(measure, pair[1]) for seed, pair in pairs.items()}
        lengths = [len(pair[0].rounds) for pair in pairs.values()]
        whole = [_differences(measure, *pair) for pair in pairs.values()]
        differences = [statistics.after_warm_up(rounds) for rounds in whole]
        over = statistics.mean_and_deviation(
            [statistics.mean_and_deviation(rounds).mean for rounds in differences]
        )
        interval = statistics.bootstrap(differences)
        enough = min(map(len, whole)) >= statistics.LAST
        twin = self._earlier_twin(cell)
        return Gain(
            cell=cell,
            without=statistics.mean_and_deviation(list(first.values())).mean,
            with_it=statistics.mean_and_deviation(list(second.values())).mean,
            spread=statistics.mean_and_deviation([second[seed] - first[seed] for seed in first]),
            by_seed=tuple(second[seed] - first[seed] for seed in first),
            rounds=(min(lengths), max(lengths)),
            since=max(lengths) - max(map(len, differences)) + 1,
            over=over,
            interval=interval,
            verdict=self._verdict(interval) if enough else "too few rounds",
            published=self._published_gain(cell),
            same_as=twin,
            rounding=twin is not None and not self._came_out_as(twin, cell),
        )

    def _verdict(self, interval: Interval) -> Verdict:
        if interval.low <= 0 <= interval.high:
            return "level"
        return "ahead" if (interval.low > 0) == self.table.higher_is_better else "behind"

    def _earlier_twin(self, cell: Cell) -> str | None:
        """An earlier method of the table that this one is, with and without Disco: by rule, or by its scores.

        The rule is what tells where the two were run on different machines.
        """
        for method in self.table.methods[: self.table.methods.index(cell.method)]:
            if self._is_by_rule(method, cell) or self._came_out_as(method, cell):
                return method
        return None

    def _came_out_as(self, method: str, cell: Cell) -> bool:
        """Whether all seeds have the method's scores in every round."""
        return all(_are_same(ours, others) for ours, others in self._beside(method, cell))

    def _is_by_rule(self, method: str, cell: Cell) -> bool:
        """FedNova is FedAvg where all take as many steps: clients of one size, each its epochs."""
        if (method, cell.method) != ("fedavg", "fednova") or self._first(cell).resolved != "sizes":
            return False
        by_sizes = self.curves[self._first(cell)].values()
        of_one_size = all(len(set(line.weights)) == 1 for curve in by_sizes for line in curve.rounds)
        both_ran = all(ours and ours.keys() <= others.keys() for ours, others in self._beside(method, cell))
        return both_ran and of_one_size and configuration(cell, 0).local.steps_range is None

    def _beside(self, method: str, cell: Cell) -> list[tuple[Curves, Curves]]:
        """The cell's curves beside the other method's: of its weighting, and of the first one."""
        other = Cell(cell.setting, method, cell.weighting)
        pairs = ((cell, other), (self._first(cell), self._first(other)))
        return [(self.curves[one], self.curves.get(two, {})) for one, two in pairs]

    def _published_gain(self, cell: Cell) -> float | None:
        place = cell.setting, cell.method
        first = self.table.published_figure(*place, self._first(cell).weighting)
        mine = self.table.published_figure(*place, cell.weighting)
        return None if first is None or mine is None else mine.value - first.value


def gather(table: Table, results: Path) -> Evidence:
    """The committed results of a table's cells, with every seed that is there (see ``tuning.settled``)."""
    return Evidence(table, {cell: _curves(cell, results) for cell in cells(table)})


def measured(measure: Measure, curve: Curve) -> float:
    """A curve as one number: percent, a loss, or percentage points squared; NaN where it has none."""
    return _MEASURES[measure](curve)


def _curves(cell: Cell, results: Path) -> dict[int, Curve]:
    files = files_of(results / cell.setting, f"{cell.method}-{cell.resolved}")
    found = {seed: read_curve(path, configuration(cell, seed)) for seed, path in files.items()}
    return {seed: curve for seed, curve in found.items() if curve is not None}


def _same_length(one: Curve, other: Curve) -> tuple[Curve, Curve]:
    rounds = min(len(one.rounds), len(other.rounds))
    return one.first(rounds), other.first(rounds)


def _are_same(ours: Curves, others: Curves) -> bool:
    """Whether every seed of ours is in the others, and equal to it in every round that both have."""
    if not ours or not ours.keys() <= others.keys():
        return False
    pairs = (_same_length(ours[seed], others[seed]) for seed in ours)
    return all([_scores(a.rounds), _losses(a)] == [_scores(b.rounds), _losses(b)] for a, b in pairs)


def _differences(measure: Measure, without: Curve, with_it: Curve) -> list[float]:
    """Round by round, where both have a value."""
    value = _BY_ROUND[measure]
    pairs = ((value(a), value(b)) for a, b in zip(without.rounds, with_it.rounds, strict=True))
    return [b - a for a, b in pairs if not math.isnan(a) and not math.isnan(b)] or [math.nan]


def _scores(rounds: Iterable[Round]) -> list[float | None]:
    return [line.accuracy for line in rounds]


def _percent(curve: Curve) -> list[float]:
    return [100 * score for score in _scores(curve.rounds) if score is not None] or [math.nan]


def _losses(curve: Curve) -> list[float]:
    return [line.loss for line in curve.rounds if line.loss is not None] or [math.nan]


def _round_percent(line: Round) -> float:
    return math.nan if line.accuracy is None else 100 * line.accuracy


def _round_loss(line: Round) -> float:
    return math.nan if line.loss is None else line.loss


def _round_variance(line: Round) -> float:
    return statistics.client_variance(line.per_client) if line.per_client else math.nan


def _round_tail(line: Round) -> float:
    return 100 * statistics.group_means(line.per_category)[-1]


_BY_ROUND: dict[Measure, Callable[[Round], float]] = {
    "last_ten": _round_percent,
    "best": _round_percent,
    "last": _round_percent,
    "loss": _round_loss,
    "client_variance": _round_variance,
    "tail": _round_tail,
}
_MEASURES: dict[Measure, Callable[[Curve], float]] = {
    "last_ten": lambda curve: statistics.last_ten(_percent(curve)).mean,
    "best": lambda curve: statistics.best(_percent(curve)),
    "last": lambda curve: _percent(curve)[-1],
    "loss": lambda curve: statistics.last_ten(_losses(curve)).mean,
    "client_variance": lambda curve: _round_variance(curve.rounds[-1]),
    "tail": lambda curve: statistics.last_ten([_round_tail(line) for line in curve.rounds]).mean,
}
