"""A federation of ten with one liar: accuracy by aggregation rule, beside the honest run.

``python -m experiments.liars`` trains what is still missing, and goes on where it was interrupted;
``--report-only`` writes the page from the results that are there. CIFAR-10, NIID-2 with five clients of two
classes and five of all, 20 rounds of two epochs, two seeds. The liar is one of the five unbiased clients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from experiments.records import files_of, read_lines
from experiments.report import table_rows
from experiments.reproduce import find_source
from shared import wire
from shared.config import RunConfig
from shared.scores import summarise
from shared.training.local_round import Diverged
from simulation.federation import Federation
from simulation.results import Results
from simulation.run import Setup, Simulation

if TYPE_CHECKING:
    from shared.schemas import Metrics
    from shared.weightings import Contribution
    from shared.wire import Opened
    from simulation.engines import Engine
    from simulation.jobs import ClientResult, Job

__all__ = ["CELLS", "LIAR", "Cell", "LyingSimulation", "cells", "liars_page", "main"]

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "liars"
PAGE = HERE.parent / "docs" / "results" / "liars.md"
LIAR = 9
LAST = 5
MOST = 2**53
Lie = Literal["none", "size", "discrepancy", "1e30", "x1000", "x-10"]

RULES = ("mean", "clipped", "trimmed-mean", "median", "krum", "multi-krum", "geometric-median")
CAP = 0.2


@dataclass(frozen=True)
class Cell:
    """One run: what the liar does, and what the run does about it. ``cap`` is its ``max_weight``."""

    lie: Lie
    rule: str
    cap: float | None = None

    @property
    def name(self) -> str:
        return f"{self.lie}-{self.rule}{'' if self.cap is None else '-cap'}"

    def config(self, seed: int, **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {
            "name": f"liars-{self.name}-s{seed}",
            "task": "cifar10",
            "rounds": 20,
            "seed": seed,
            "partition": "niid2:5+5",
            "weighting": {"kind": "disco", "a": 0.5, "b": 0.1},
            "local": {"epochs": 2, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.9},
            "quorum": 5,
            "aggregation": self.rule,
            "max_weight": self.cap,
        }
        return RunConfig.model_validate(fields | changes)


CELLS = (
    *(Cell("none", rule) for rule in RULES),
    *(Cell("x1000", rule, CAP) for rule in RULES),
    *(Cell("x-10", rule, CAP) for rule in RULES),
    Cell("1e30", "mean"),
    Cell("size", "mean"),
    Cell("size", "mean", CAP),
    Cell("discrepancy", "mean"),
    Cell("discrepancy", "mean", CAP),
)


# ---------------------------------------------------------------- lying


class LyingFederation(Federation):
    """Client ``LIAR`` declares another size, or another discrepancy, than it has."""

    lie: Lie = "none"

    def _contribution(self, index: int) -> Contribution:
        honest = super()._contribution(index)
        if index != LIAR:
            return honest
        if self.lie == "size":
            return replace(honest, examples=MOST)
        return replace(honest, discrepancy=0.0) if self.lie == "discrepancy" else honest


@dataclass(frozen=True)
class LyingEngine:
    """Trains honestly, then falsifies the liar's update file."""

    engine: Engine
    lie: Lie

    def map(self, jobs: Sequence[Job]) -> list[ClientResult]:
        results = self.engine.map(jobs)
        for job in jobs:
            if job.task.index == LIAR:
                falsify(job, self.lie)
        return results


def falsify(job: Job, lie: Lie) -> None:
    """Rewrite the update: every number 1e30, or the displacement so many times itself."""
    with wire.opened(job.task.model) as start, wire.opened(job.update) as sent:
        tensors = {name: _lie_about(name, lie, start, sent) for name in sent.names}
        wire.write(job.update.with_suffix(".false"), {wire.MODEL: tensors}, durable=False)
    job.update.with_suffix(".false").replace(job.update)


def _lie_about(name: str, lie: Lie, start: Opened, sent: Opened) -> Any:
    value = sent.tensor(wire.MODEL, name)
    if lie == "1e30":
        return value.new_full(value.shape, 1e30)
    factor = {"x1000": 1000.0, "x-10": -10.0}[lie]
    before = start.tensor(wire.MODEL, name)
    return before + factor * (value - before)


class LyingSimulation(Simulation):
    """A simulation in which one client lies."""

    lie: Lie = "none"

    def _make_federation(self, folder: Path, scores: Mapping[int, Metrics]) -> Federation:
        lying = type("Lying", (LyingFederation,), {"lie": self.lie})
        made: Federation = lying(self._config, self._workbench, folder, scores)
        return made

    def _adapt(self, engine: Engine) -> Engine:
        return LyingEngine(engine, self.lie) if self.lie in ("1e30", "x1000", "x-10") else engine


# ---------------------------------------------------------------- running


def cells(only: str, seeds: int) -> Iterator[tuple[Cell, int]]:
    """What there is to run, seed by seed."""
    for seed in range(seeds):
        yield from ((cell, seed) for cell in CELLS if fnmatchcase(cell.name, only))


def train(cell: Cell, config: RunConfig, setup: Setup, out: Path, say: Callable[[str], None]) -> None:
    """Train a cell's run, or what is left of it. A model that no client can train any more ends it, too."""
    results = Results(out)
    if _stopped_in(results.lines()):
        return
    kind = type("Lying", (LyingSimulation,), {"lie": cell.lie})
    with kind(config, setup, out, say) as run:
        try:
            run.train()
        except Diverged as diverged:
            rounds = sum(line["kind"] == "round" for line in results.lines())
            results.append({"kind": "stopped", "round": rounds + 1, "reason": str(diverged)})
            say(f"{config.name}: {diverged}")


def _stopped_in(lines: Sequence[Mapping[str, Any]]) -> int | None:
    """The round in which training was no longer possible."""
    return lines[-1]["round"] if lines and lines[-1]["kind"] == "stopped" else None


def result_of(cell: Cell, seed: int, folder: Path = RESULTS) -> Path:
    return folder / f"{cell.name}-s{seed}.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="cells whose name matches, like 'x1000-*'")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--kernels", choices=("torch", "native"), default="native")
    parser.add_argument("--data", type=Path, default=None, help="folder with the data sets")
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args(arguments)
    if not given.report_only:
        asked = list(cells(given.only, given.seeds))
        if not asked:
            parser.error(f"--only: no cell has a name like {given.only!r}; the first is {CELLS[0].name}")
        cache = HERE.parent / ".cache"
        setup = Setup(find_source("cifar10", given.data), cache, kernels=given.kernels)
        for cell, seed in asked:
            train(cell, cell.config(seed), setup, result_of(cell, seed), print)
    PAGE.write_text(liars_page(RESULTS), encoding="utf-8")


# ---------------------------------------------------------------- page


def accuracy_of(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean accuracy of the last rounds, in per cent; None: the run is not finished."""
    if not lines or lines[-1]["kind"] != "end":
        return None
    found = [line["accuracy"] for line in lines if line["kind"] == "round"][-LAST:]
    return 100 * fmean(found)


def liars_page(results: Path) -> str:
    """The page, from the runs that are finished."""
    lines = [
        "# One liar among ten",
        "",
        "CIFAR-10, NIID-2 (five clients of two classes, five of all), simple CNN, Disco weights (a = 0.5, "
        "b = 0.1), 20 rounds of two epochs. Test accuracy in per cent, mean of the last "
        f"{LAST} rounds; one number a seed. The liar is one of the five of all classes, so that its "
        "discrepancy is 0 before it says so. `python -m experiments.liars` runs what is missing.",
        "",
        "## What is sent",
        "",
        "A run *stops* in the round in which honest clients can no longer train the model: "
        "their loss is not finite.",
        "",
        f"In the columns with a lie the run has `max_weight: {CAP:g}`; without a lie, and where the update "
        "is refused, it has none.",
        "",
        *_by_rule(results),
        "",
        "## What is declared",
        "",
        *_declared(results),
        "",
        "## What is scored",
        "",
        *_scored(results),
    ]
    return "\n".join(lines) + "\n"


def _by_rule(results: Path) -> list[str]:
    lies: tuple[Lie, ...] = ("none", "x1000", "x-10")
    rows = [
        [f"`{rule}`", *(_shown(Cell(lie, rule, None if lie == "none" else CAP), results) for lie in lies)]
        for rule in RULES
    ]
    rows.append(["`mean`, update of 1e30 refused", "", _shown(Cell("1e30", "mean"), results), ""])
    return table_rows(["rule", "all honest", "liar sends 1000 times", "liar sends -10 times"], rows)


def _declared(results: Path) -> list[str]:
    lies: tuple[tuple[Lie, str], ...] = (
        ("size", "2^53 examples"),
        ("discrepancy", "a discrepancy of 0"),
    )
    rows = [
        [words, _shown(Cell(lie, "mean"), results), _shown(Cell(lie, "mean", CAP), results)]
        for lie, words in lies
    ]
    return table_rows(["the liar declares", "believed", f"max_weight {CAP:g}"], rows)


def _scored(results: Path) -> list[str]:
    """Three evaluators, of whom one says 1.0 on 2^53 examples; the two honest ones have the same test set."""
    rows = []
    for seed in range(2):
        cell = Cell("none", "mean")
        honest = accuracy_of(read_lines(result_of(cell, seed, results), cell.config(seed)))
        if honest is not None:
            scores = [(honest / 100, 10_000), (honest / 100, 10_000), (1.0, MOST)]
            told = (100 * summarise(scores, rule) for rule in ("weighted", "median"))
            rows.append([str(seed), f"{honest:.2f}", *(f"{value:.2f}" for value in told)])
    header = ["seed", "the model's accuracy", "headline by declared sizes", "headline by the median"]
    return table_rows(header, rows) if rows else ["Not yet run."]


def _shown(cell: Cell, results: Path) -> str:
    found = []
    for seed, path in files_of(results, cell.name).items():
        lines = read_lines(path, cell.config(seed))
        if stopped := _stopped_in(lines):
            found.append(f"stops in round {stopped}")
        elif (value := accuracy_of(lines)) is not None:
            found.append(f"{value:.2f}")
    return ", ".join(found) or "not yet run"


if __name__ == "__main__":
    main()
