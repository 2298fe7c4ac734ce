"""What privacy costs: accuracy in clear, with secure sums of 64 and 32 bits, and with differential privacy.

``python -m experiments.privacy_costs`` trains what is missing (CIFAR-10, NIID-2 with 5 + 1 clients, 20 rounds
of 50 steps, three seeds, each by Disco's weights and by sizes) and goes on where it was interrupted;
``--report-only`` only writes the page, ``--modes`` and ``--seeds`` choose.

Secure sums are simulated: quantised and added up as in the service, without masks. The noise of private
training comes from the run's seed here, so that a result can be made again; at a site it is secret.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from experiments.records import Curve, publish, read_curve
from experiments.report import table_rows
from experiments.reproduce import find_source
from shared.config import RunConfig
from shared.files import replace_file
from shared.texts import format_count
from simulation.kernels import KernelsName
from simulation.sweep import Planned, sweep

__all__ = ["CELLS", "Cell", "main", "privacy_page"]

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "privacy"
WORK = HERE / "results" / ".work"
PAGE = HERE.parent / "docs" / "results" / "privacy.md"
ROUNDS, STEPS, SEEDS, LAST = 20, 50, 3, 5
CLIP, DELTA = 1.0, 1e-5

MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "secure-64": {"secure": {"bits": 64}},
    "secure-32": {"secure": {"bits": 32}},
    "dp-8": {"dp": {"epsilon": 8.0, "delta": DELTA, "clip": CLIP}},
    "dp-3": {"dp": {"epsilon": 3.0, "delta": DELTA, "clip": CLIP}},
}
WORDS: Final = {
    "plain": "updates in clear",
    "secure-64": "secure sums, 64 bits",
    "secure-32": "secure sums, 32 bits",
    "dp-8": "differential privacy, epsilon 8",
    "dp-3": "differential privacy, epsilon 3",
}
WEIGHTINGS: Final = ("disco", "sizes")


@dataclass(frozen=True)
class Cell:
    """One run: a mode of privacy, by Disco's weights or by sizes."""

    mode: str
    weighting: str
    seed: int

    @property
    def file(self) -> Path:
        return Path(f"{self.mode}-{self.weighting}-s{self.seed}.jsonl")

    @property
    def kernels(self) -> KernelsName:
        """A gradient an example is PyTorch's to make."""
        return "torch" if self.mode.startswith("dp") else "native"

    def config(self, rounds: int = ROUNDS, **changes: Any) -> RunConfig:
        disco = {"kind": "disco", "normalise": "all_clients", "on_all_zero": "raise"}
        fields: dict[str, Any] = {
            "name": f"privacy-{self.mode}-{self.weighting}-s{self.seed}",
            "task": "cifar10",
            "rounds": rounds,
            "seed": self.seed,
            "partition": "niid2:5+1",
            "weighting": disco if self.weighting == "disco" else {"kind": "sizes"},
            "local": {"steps": STEPS, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.9},
        }
        return RunConfig.model_validate(fields | dict(MODES[self.mode]) | changes)


CELLS: Final = tuple(
    Cell(mode, weighting, seed) for seed, mode, weighting in product(range(SEEDS), MODES, WEIGHTINGS)
)


# ---------------------------------------------------------------- runs and page


def planned(cells: Sequence[Cell], data: Path | None) -> Iterator[Planned]:
    """The runs that are not committed whole."""
    missing = [cell for cell in cells if curve_of(cell) is None]
    source = find_source("cifar10", data) if missing else None
    for cell in missing:
        yield Planned(
            cell.config(), WORK / "privacy" / cell.file, source, WORK / "cache", ROUNDS, cell.kernels
        )


def curve_of(cell: Cell) -> Curve | None:
    """The curve of a run that is over; None if it is not.

    Raises:
        InvalidConfiguration: the file holds the results of another configuration.
    """
    curve = read_curve(RESULTS / cell.file, cell.config())
    return curve if curve is not None and curve.is_whole else None


def privacy_page() -> str:
    found = {cell: curve.last_accuracy(LAST) for cell in CELLS if (curve := curve_of(cell)) is not None}
    head = ["mode", *(f"{weighting}, seed {seed}" for weighting in WEIGHTINGS for seed in range(SEEDS))]
    rows = [[WORDS[mode], *(_accuracy(found, mode, *column) for column in _columns())] for mode in MODES]
    lines = [
        "# What privacy costs",
        "",
        f"Not in the paper. CIFAR-10, NIID-2 with 5 + 1 clients, {ROUNDS} rounds of {STEPS} steps with 64 "
        "examples (in the mean, where they are drawn for differential privacy), weighted by Disco and by "
        f"sizes, in each mode of [privacy](../privacy.md). Mean accuracy of the last {LAST} rounds in "
        "percent.",
        "",
        *table_rows(head, rows, 1),
        "",
        *_verdict(found),
        "",
        f"Differential privacy is that of one example at a site over the whole run, with delta {DELTA:g} and "
        f"gradients clipped to {CLIP:g}. Learning rate and batch are those of the other runs, not tuned for "
        "it; larger batches would cost less accuracy. *Not run* says that there is no result yet: "
        "`python -m experiments.privacy_costs` trains what is missing.",
    ]
    return "\n".join(lines) + "\n"


def _columns() -> Iterator[tuple[str, int]]:
    yield from product(WEIGHTINGS, range(SEEDS))


def _accuracy(found: Mapping[Cell, float], mode: str, weighting: str, seed: int) -> str:
    value = found.get(Cell(mode, weighting, seed))
    return "not run" if value is None else f"{value:.2f}"


def _verdict(found: Mapping[Cell, float]) -> Iterator[str]:
    """A sentence a mode: its mean difference to updates in clear of the same seed and weighting."""
    for mode in MODES:
        if mode == "plain":
            continue
        for weighting in WEIGHTINGS:
            pairs = [
                found[Cell(mode, weighting, seed)] - found[Cell("plain", weighting, seed)]
                for seed in range(SEEDS)
                if {Cell(mode, weighting, seed), Cell("plain", weighting, seed)} <= found.keys()
            ]
            if pairs:
                seeds = format_count(len(pairs), "seed")
                yield f"* {WORDS[mode]}, by {weighting}: {fmean(pairs):+.2f} points over {seeds}"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What privacy costs.")
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--weightings", nargs="+", choices=WEIGHTINGS, default=list(WEIGHTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, choices=range(SEEDS), default=list(range(SEEDS)))
    parser.add_argument("--report-only", action="store_true")
    chosen = parser.parse_args(given)
    if not chosen.report_only:
        cells = [
            cell
            for cell in CELLS
            if cell.mode in chosen.modes and cell.weighting in chosen.weightings and cell.seed in chosen.seeds
        ]
        sweep(list(planned(cells, chosen.data)), processes=chosen.processes)
    for cell in CELLS:
        if (WORK / "privacy" / cell.file).exists():
            publish(WORK / "privacy" / cell.file, RESULTS / cell.file)
    replace_file(PAGE, privacy_page().encode(), durable=False)


if __name__ == "__main__":
    main()
