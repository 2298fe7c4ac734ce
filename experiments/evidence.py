"""What there is for a table: its curves by cell and seed, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments import statistics
from experiments.plan import Cell, PlannedRun, cells, configuration
from experiments.records import Curve, read_curve
from experiments.statistics import Spread
from experiments.tables import Measure, Table

__all__ = ["Evidence", "Gain", "gather", "measured"]

Curves = Mapping[int, Curve]
State = Literal["reproduced", "not reproduced", "partly", "not yet run"]


@dataclass(frozen=True)
class Gain:
    """A cell against the first weighting of its row, over the seeds and rounds that both have.

    ``without`` and ``with_it`` are the two means, ``spread`` that of the differences by seed.
    """

    cell: Cell
    without: float
    with_it: float
    spread: Spread
    rounds: tuple[int, int]
    published: float | None


@dataclass(frozen=True)
class Evidence:
    """A table and its curves: ``curves[cell][seed]``, empty where nothing was run."""

    table: Table
    curves: Mapping[Cell, Curves]

    def values(self, cell: Cell) -> dict[int, float]:
        """The table's measure by seed."""
        found = self.curves[cell]
        return {seed: measured(self.table.measure, curve) for seed, curve in found.items()}

    def gains(self) -> list[Gain]:
        """Every cell against its row's first weighting, where both have a seed in common."""
        rows = [cell for cell in self.curves if cell.weighting != self._first(cell).weighting]
        return [gain for cell in rows if (gain := self._gain(cell))]

    def gain(self, cell: Cell) -> Gain | None:
        """This cell's, if there is one."""
        return None if cell == self._first(cell) else self._gain(cell)

    def rounds(self) -> tuple[int, int]:
        """Rounds there are, and rounds that the table asks for with all of its seeds."""
        asked = {self.file(cell, seed): self._asked(cell) for cell in self.curves for seed in self._seeds()}
        there = {
            self.file(cell, seed): min(len(curve.rounds), self._asked(cell))
            for cell, found in self.curves.items()
            for seed, curve in found.items()
            if seed < self.table.seeds
        }
        return sum(there.values()), sum(asked.values())

    def state(self) -> State:
        """Whether Disco was seen to help: in all pairs of cells, in some, in none, or not tried."""
        there, asked = self.rounds()
        if not there:
            return "not yet run"
        signs = self.signs()
        if there < asked or not signs or (any(signs) and not all(signs)):
            return "partly"
        return "reproduced" if all(signs) else "not reproduced"

    def signs(self) -> list[bool]:
        """For each cell with Disco that has a pair, whether it is ahead."""
        with_disco = (gain for gain in self.gains() if gain.cell.resolved not in ("sizes", "uniform"))
        return [self.better(gain.spread.mean) for gain in with_disco]

    def better(self, difference: float) -> bool:
        return (difference > 0) == self.table.higher_is_better and difference != 0

    def file(self, cell: Cell, seed: int) -> Path:
        return PlannedRun(cell, seed, configuration(cell, seed), 0).file

    def _seeds(self) -> range:
        return range(self.table.seeds)

    def _asked(self, cell: Cell) -> int:
        rounds = configuration(cell, 0).rounds
        return min(rounds, self.table.rounds or rounds)

    def _first(self, cell: Cell) -> Cell:
        return Cell(cell.setting, cell.method, self.table.weightings_of(cell.method)[0])

    def _gain(self, cell: Cell) -> Gain | None:
        base, ours = self.curves[self._first(cell)], self.curves[cell]
        pairs = {seed: (base[seed], ours[seed]) for seed in base.keys() & ours.keys()}
        if not pairs:
            return None
        common = {seed: min(len(a.rounds), len(b.rounds)) for seed, (a, b) in pairs.items()}
        measure = self.table.measure
        first = {seed: measured(measure, pair[0].first(common[seed])) for seed, pair in pairs.items()}
        second = {seed: measured(measure, pair[1].first(common[seed])) for seed, pair in pairs.items()}
        spread = statistics.paired_gain(first, second)
        assert spread is not None
        without, with_it = (statistics.mean_and_deviation(list(v.values())).mean for v in (first, second))
        rounds = (min(common.values()), max(common.values()))
        return Gain(cell, without, with_it, spread, rounds, self._published_gain(cell))

    def _published_gain(self, cell: Cell) -> float | None:
        figures = self.table.published.get(cell.setting, {}).get(cell.method, {})
        first = figures.get(self._first(cell).weighting)
        mine = figures.get(cell.weighting)
        return None if first is None or mine is None else mine.value - first.value


def gather(table: Table, results: Path) -> Evidence:
    """The committed results of a table's cells, with every seed that is there."""
    return Evidence(table, {cell: _curves(cell, results) for cell in cells(table)})


def measured(measure: Measure, curve: Curve) -> float:
    """A curve as one number: percent, a loss, or percentage points squared; NaN where it has none."""
    return _MEASURES[measure](curve)


def _curves(cell: Cell, results: Path) -> dict[int, Curve]:
    stem = f"{cell.method}-{cell.resolved}-s"
    seeds = sorted(
        int(path.stem.removeprefix(stem)) for path in (results / cell.setting).glob(f"{stem}[0-9]*.jsonl")
    )
    found = {
        seed: read_curve(results / cell.setting / f"{stem}{seed}.jsonl", configuration(cell, seed))
        for seed in seeds
    }
    return {seed: curve for seed, curve in found.items() if curve is not None}


def _percent(curve: Curve) -> list[float]:
    return [100 * line.accuracy for line in curve.rounds if line.accuracy is not None] or [math.nan]


def _loss(curve: Curve) -> float:
    losses = [line.loss for line in curve.rounds if line.loss is not None]
    return statistics.last_ten(losses).mean if losses else math.nan


def _variance(curve: Curve) -> float:
    last = curve.rounds[-1].per_client
    return statistics.client_variance(last) if last else math.nan


def _tail(curve: Curve) -> float:
    tails = [statistics.group_means(line.per_category)[-1] for line in curve.rounds]
    return 100 * statistics.last_ten(tails).mean


_MEASURES: dict[Measure, Callable[[Curve], float]] = {
    "last_ten": lambda curve: statistics.last_ten(_percent(curve)).mean,
    "best": lambda curve: statistics.best(_percent(curve)),
    "last": lambda curve: _percent(curve)[-1],
    "loss": _loss,
    "client_variance": _variance,
    "tail": _tail,
}
