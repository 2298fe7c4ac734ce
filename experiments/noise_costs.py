"""What noise on the discrepancies costs: Disco's weights and accuracy with exact ones, epsilon 1 and 0.1.

``python -m experiments.noise_costs`` trains what is missing (CIFAR-10, NIID-2 with 5 + 1 clients, 20 rounds
of two epochs, three seeds) and goes on where it was interrupted; ``--report-only`` only writes the page.

The noise is the worker's own (:mod:`worker.disclosure`, by OpenDP) and comes from the operating system, so
a run's answers are part of its configuration: with them it can be repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from experiments.records import Curve, publish, read_curve
from experiments.report import table_rows
from experiments.reproduce import find_source
from shared.config import RunConfig
from shared.discrepancy import discrepancy
from shared.files import replace_file
from shared.texts import format_count
from shared.weightings.base import Discrepancy, Need, Weighed, Weighting, WeightingRound
from shared.weightings.disco import DiscoWeighting, weights
from simulation.jobs import WorkbenchSpec
from simulation.results import Results
from simulation.sweep import Planned, sweep
from worker.disclosure import Disclosures, Question, Rule

__all__ = ["Cell", "ToldDisco", "main", "noise_page", "weight_changes"]

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "noise"
WORK = HERE / "results" / ".work"
PAGE = HERE.parent / "docs" / "results" / "noise.md"
KIND = "experiments.noise_costs:ToldDisco"
ROUNDS, SEEDS, LAST = 20, 3, 5
A, B = 0.5, 0.1
SIZES = (30, 100, 300, 1000, 3000, 10_000)
"""Examples at each site, for the table of weights."""
DRAWS = 200


class ToldDisco(Weighting):
    """Disco by what the sites answer in place of their discrepancies: ``told``, one number a client."""

    citation: ClassVar[str] = DiscoWeighting.citation
    asks: ClassVar[frozenset[Need]] = frozenset({Need.NUMBER})

    kind: str = KIND
    a: float = A
    b: float = B
    told: tuple[float, ...]

    @property
    def discrepancy(self) -> Discrepancy:
        return Discrepancy("kl", "uniform")

    def weigh(self, round: WeightingRound) -> Weighed:
        taken = [replace(row, discrepancy=self.told[row.index]) for row in round.taken]
        return DiscoWeighting(a=self.a, b=self.b).weigh(replace(round, taken=taken))


@dataclass(frozen=True)
class Cell:
    """One run; ``epsilon`` None: what the sites tell is exact."""

    epsilon: float | None
    seed: int

    @property
    def grade(self) -> str:
        return "exact" if self.epsilon is None else f"epsilon-{self.epsilon:g}"

    @property
    def file(self) -> Path:
        return Path(f"{self.grade}-s{self.seed}.jsonl")

    def config(self, told: Sequence[float], rounds: int = ROUNDS, **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {
            "name": f"noise-{self.grade}-s{self.seed}",
            "task": "cifar10",
            "rounds": rounds,
            "seed": self.seed,
            "partition": "niid2:5+1",
            "weighting": {"kind": KIND, "options": {"told": list(told)}, "asked": {}},
            "local": {"epochs": 2, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.9},
        }
        return RunConfig.model_validate(fields | changes)


CELLS = tuple(Cell(epsilon, seed) for seed, epsilon in product(range(SEEDS), (None, 1.0, 0.1)))


# ---------------------------------------------------------------- what the sites tell


def answers(counts: Sequence[Sequence[int]], epsilon: float | None) -> list[float]:
    """One answer a site, each with a record of its own, as workers give them; ``counts`` by class."""
    rule = Rule("exact") if epsilon is None else Rule("noised", epsilon)
    found = []
    for index, mine in enumerate(counts):
        classes = tuple(map(str, range(len(mine))))
        question = Question(f"data {index}", "as they are", classes, tuple(mine), "kl", "uniform")
        with tempfile.TemporaryDirectory() as folder:
            found.append(Disclosures(Path(folder)).answer(question, rule).value)
    return found


def find_told(cell: Cell, source: Path | None, **changes: Any) -> list[float]:
    """What the run's sites tell: as its result says, or asked now."""
    for folder in (WORK / "noise", RESULTS):
        if (told := told_in(folder / cell.file)) is not None:
            return told
    config = cell.config([0.0] * 6, **changes)
    return answers(counts_of(config, source), cell.epsilon)


def told_in(path: Path) -> list[float] | None:
    """What the sites told in a result; None if there is none, or it is of another weighting."""
    lines = Results(path).lines()
    told = lines[0]["config"].get("weighting", {}).get("options", {}).get("told") if lines else None
    return None if told is None else list(told)


def counts_of(config: RunConfig, source: Path | None) -> list[list[int]]:
    workbench = WorkbenchSpec.of(config, source, WORK / "cache").build()
    return [[int(n) for n in workbench.class_counts(index)] for index in range(workbench.clients)]


def weight_changes(size: int, epsilon: float, draws: int = DRAWS) -> list[float]:
    """Of each draw the largest change of a weight: five sites of two classes and one of ten, of like size."""
    biased = [[size // 2 if at // 2 == pair else 0 for at in range(10)] for pair in range(5)]
    counts = [*biased, [size // 10] * 10]
    sizes = [sum(mine) for mine in counts]
    exact = weights(sizes, [discrepancy(mine, "uniform", "kl") for mine in counts], A, B)
    return [float(np.abs(weights(sizes, answers(counts, epsilon), A, B) - exact).max()) for _ in range(draws)]


# ---------------------------------------------------------------- runs and page


def planned(cells: Sequence[Cell], data: Path | None) -> Iterator[Planned]:
    """The runs that are not committed whole."""
    missing = [cell for cell in cells if curve_of(cell) is None]
    source = find_source("cifar10", data) if missing else None
    for cell in missing:
        config = cell.config(find_told(cell, source))
        yield Planned(config, WORK / "noise" / cell.file, source, WORK / "cache", ROUNDS, "native")


def curve_of(cell: Cell) -> Curve | None:
    """The curve of a run that is over; None if it is not.

    Raises:
        InvalidConfiguration: the file holds the results of another configuration.
    """
    path = RESULTS / cell.file
    curve = read_curve(path, cell.config(told_in(path) or []))
    return curve if curve is not None and curve.is_whole else None


def recorded_changes() -> dict[tuple[int, float], list[float]]:
    path = RESULTS / "weights.jsonl"
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(row["size"], row["epsilon"]): row["changes"] for row in rows}


def record_changes() -> None:
    lines = [
        {"size": size, "epsilon": epsilon, "changes": [round(c, 6) for c in weight_changes(size, epsilon)]}
        for size, epsilon in product(SIZES, (1.0, 0.1))
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    replace_file(RESULTS / "weights.jsonl", text.encode(), durable=False)


def noise_page() -> str:
    curves = {cell: curve for cell in CELLS if (curve := curve_of(cell)) is not None}
    lines = [
        "# What noise on the discrepancies costs",
        "",
        f"Not in the paper. Disco with a = {A:g} and b = {B:g} by what sites tell in each grade of "
        "[disclosure](../privacy.md): the exact discrepancy (KL to uniform), or with Laplace noise of "
        "epsilon 1 (the default) or 0.1.",
        "",
        "## Accuracy",
        "",
        f"CIFAR-10, NIID-2 with 5 + 1 clients, {ROUNDS} rounds of two epochs. Mean of the last {LAST} rounds "
        "in percent; the difference is to the run of the same seed with exact ones. The change is the "
        "largest of a weight, in percentage points.",
        "",
    ]
    head = ["told", "seed", "accuracy", "difference", "largest change of a weight"]
    lines += table_rows(head, _accuracy_rows(curves))
    lines += ["", _verdict(curves), "", "## Weights", "", *_weights_part()]
    return "\n".join(lines) + "\n"


def _accuracy_rows(curves: dict[Cell, Curve]) -> Iterator[list[str]]:
    for cell, curve in sorted(curves.items(), key=lambda at: (-(at[0].epsilon or 2), at[0].seed)):
        exact = curves.get(Cell(None, cell.seed))
        accuracy, changes = curve.last_accuracy(LAST), ("", "")
        if cell.epsilon is not None and exact is not None:
            changes = f"{accuracy - exact.last_accuracy(LAST):+.2f}", f"{100 * _change(curves, cell):.3f}"
        yield [cell.grade.replace("-", " "), str(cell.seed), f"{accuracy:.2f}", *changes]


def _verdict(curves: dict[Cell, Curve]) -> str:
    means = []
    for epsilon in (1.0, 0.1):
        pairs = [
            curves[cell].last_accuracy(LAST) - curves[exact].last_accuracy(LAST)
            for cell in curves
            if cell.epsilon == epsilon and (exact := Cell(None, cell.seed)) in curves
        ]
        if pairs:
            means.append(f"epsilon {epsilon:g}: {fmean(pairs):+.2f} over {format_count(len(pairs), 'seed')}")
    alone = [curve.last_accuracy(LAST) for cell, curve in curves.items() if cell.epsilon is None]
    several = len(alone) > 1
    spread = f"; between seeds, exact runs differ by up to {max(alone) - min(alone):.2f}" if several else ""
    moved = max((_change(curves, cell) for cell in curves if cell.epsilon == 1.0), default=0.0)
    return (
        f"Mean difference in percentage points: {', '.join(means)}{spread}. With epsilon 1 no weight moves "
        f"by more than {100 * moved:.2f} points: what its runs differ by is what any change in the last "
        "digits makes of such a run, and no cost of the noise can be told from it."
        if means
        else ""
    )


def _change(curves: dict[Cell, Curve], cell: Cell) -> float:
    """The largest change of a weight against the exact run of the seed; 0 if there is none."""
    exact = curves.get(Cell(None, cell.seed))
    if exact is None:
        return 0.0
    return float(np.abs(np.array(curves[cell].rounds[0].weights) - np.array(exact.rounds[0].weights)).max())


def _weights_part() -> list[str]:
    recorded = recorded_changes()

    def cell(size: int, epsilon: float) -> str:
        changes = recorded[size, epsilon]
        return f"{100 * fmean(changes):.2f} ({100 * float(np.quantile(changes, 0.95)):.2f})"

    if not recorded:
        return []
    rows = [[f"{size:,}", cell(size, 1.0), cell(size, 0.1)] for size in SIZES]
    return [
        f"The noise falls with the number of examples at a site. Of {DRAWS} draws, the mean (and the 95 % "
        "quantile) of the largest change of a weight, in percentage points; five sites of two classes and "
        "one of all ten, each with so many examples.",
        "",
        *table_rows(["examples at a site", "epsilon 1", "epsilon 0.1"], rows, 1),
    ]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What noise on the discrepancies costs.")
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--report-only", action="store_true")
    chosen = parser.parse_args(given)
    if not chosen.report_only:
        if not recorded_changes():
            record_changes()
        sweep(list(planned(CELLS, chosen.data)), processes=chosen.processes)
        for cell in CELLS:
            publish(WORK / "noise" / cell.file, RESULTS / cell.file)
    replace_file(PAGE, noise_page().encode(), durable=False)


if __name__ == "__main__":
    main()
