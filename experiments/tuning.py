"""The choice of a and b for a table whose weighting is ``tuned``: made on validation, or on the test set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.evidence import Evidence, gather
from experiments.plan import Cell
from experiments.records import Curve, Round
from experiments.tables import Table
from shared import statistics

__all__ = ["Choice", "Tried", "choose", "settled", "trials"]


@dataclass(frozen=True)
class Tried:
    """A pair of a and b: mean of the last ten rounds and of the seeds in percent; None: no validation."""

    weighting: str
    validation: float | None
    test: float


@dataclass(frozen=True)
class Choice:
    """The pairs that were run to the end for the same ``seeds``, of how many, and the best of them."""

    tried: tuple[Tried, ...]
    of: int
    seeds: tuple[int, ...]
    on_validation: str | None
    on_test: str

    def on(self, what: str) -> str | None:
        return self.on_validation if what == "validation" else self.on_test


def trials(table: Table) -> Table:
    """The runs from which a and b are chosen: those of one method, without ``tuned``."""
    assert table.tune is not None
    method = table.tune.method
    rows = {setting: {m: f for m, f in by.items() if m == method} for setting, by in table.published.items()}
    return table.model_copy(update={"methods": (method,), "published": rows})


def settled(table: Table, results: Path) -> Table:
    """The table with what was chosen from the committed results, if it is to be tuned and anything was."""
    if table.tune is None:
        return table
    choice = choose(gather(trials(table), results))
    return table.model_copy(update={"chosen": choice.on(table.tune.on) if choice else None})


def choose(evidence: Evidence) -> Choice | None:
    """The choice from complete runs, over the seeds that all pairs have; None if there are none.

    A pair of which no seed was run to the end does not take part.
    """
    table = evidence.table
    assert table.tune is not None
    cells = {pair: Cell(table.settings[0], table.tune.method, pair) for pair in table.tune.pairs}
    complete = {pair: evidence.complete(cell) for pair, cell in cells.items() if evidence.complete(cell)}
    common = sorted(set.intersection(*map(set, complete.values()))) if complete else []
    if not common:
        return None
    tried = tuple(_tried(pair, [curves[seed] for seed in common]) for pair, curves in complete.items())
    validated = [each for each in tried if each.validation is not None]
    best = max(validated, key=lambda each: each.validation or 0.0) if validated else None
    on_test = max(tried, key=lambda each: each.test).weighting
    return Choice(tried, len(cells), tuple(common), best.weighting if best else None, on_test)


def _tried(pair: str, curves: list[Curve]) -> Tried:
    return Tried(pair, _mean(curves, _validation), _mean(curves, _test) or 0.0)


def _mean(curves: list[Curve], score: Callable[[Round], float | None]) -> float | None:
    scores = [[score(line) for line in curve.rounds[-statistics.LAST :]] for curve in curves]
    means = [[100 * value for value in rounds if value is not None] for rounds in scores]
    if not all(means):
        return None
    return statistics.mean_and_deviation([statistics.mean_and_deviation(r).mean for r in means]).mean


def _validation(line: Round) -> float | None:
    return line.validation_accuracy


def _test(line: Round) -> float | None:
    return line.accuracy
