"""What smaller updates cost: accuracy and bytes of a round, sent whole and in each compression.

``python -m experiments.compression_costs`` trains what is missing (CIFAR-10, NIID-2 with 5 + 1 clients, 20
rounds of 50 steps, two seeds, by Disco's weights) and goes on where it was interrupted; ``--report-only``
only writes the page, ``--modes`` and ``--seeds`` choose.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from experiments.records import Curve, publish, read_curve
from experiments.report import table_rows
from experiments.reproduce import find_source
from shared.config import RunConfig
from shared.files import replace_file
from simulation.sweep import Planned, sweep

__all__ = ["CELLS", "Cell", "compression_page", "main", "measure_update"]

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "compression"
WORK = HERE / "results" / ".work"
PAGE = HERE.parent / "docs" / "results" / "compression.md"
ROUNDS, STEPS, SEEDS, LAST = 20, 50, 2, 5
PARTITION = "niid2:5+1"

MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "whole": {},
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top-k-10": {"compression": {"kind": "top-k", "share": 0.1}},
    "top-k-1": {"compression": {"kind": "top-k", "share": 0.01}},
}
WORDS: Final = {
    "whole": "whole",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "top-k-10": "top-k of 10 %",
    "top-k-1": "top-k of 1 %",
}


@dataclass(frozen=True)
class Cell:
    """One run: how updates are sent, and a seed."""

    mode: str
    seed: int

    @property
    def file(self) -> Path:
        return Path(f"{self.mode}-s{self.seed}.jsonl")

    def config(self, rounds: int = ROUNDS, **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {
            "name": f"compression-{self.mode}-s{self.seed}",
            "task": "cifar10",
            "rounds": rounds,
            "seed": self.seed,
            "partition": PARTITION,
            "local": {"steps": STEPS, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.9},
        }
        return RunConfig.model_validate(fields | dict(MODES[self.mode]) | changes)


CELLS: Final = tuple(Cell(mode, seed) for seed, mode in product(range(SEEDS), MODES))


# ---------------------------------------------------------------- runs and page


def planned(cells: Sequence[Cell], data: Path | None) -> Iterator[Planned]:
    """The runs that are not committed whole."""
    missing = [cell for cell in cells if curve_of(cell) is None]
    source = find_source("cifar10", data) if missing else None
    for cell in missing:
        yield Planned(
            cell.config(), WORK / "compression" / cell.file, source, WORK / "cache", ROUNDS, "native"
        )


def curve_of(cell: Cell) -> Curve | None:
    """The curve of a run that is over; None if it is not.

    Raises:
        InvalidConfiguration: the file holds the results of another configuration.
    """
    curve = read_curve(RESULTS / cell.file, cell.config())
    return curve if curve is not None and curve.is_whole else None


def measure_update(config: RunConfig) -> int:
    """Bytes of one client's update of the run's model, as a file."""
    import torch

    from shared import wire
    from shared.tasks import task_of
    from shared.update_forms import find_form
    from shared.wire.packing import pack
    from shared.wire.tensors import manifest_of, state_of

    model = task_of(config).build_model(config.model, config.seed)
    state, form = state_of(model), find_form(config, manifest_of(model))
    groups = {wire.MODEL: state}
    if form is not None:
        parameters = {spec.name for spec in form.parameters}
        moved = {name: torch.ones_like(state[name]) for name in parameters}
        rest = {name: value for name, value in state.items() if name not in parameters}
        groups = {wire.MODEL: rest, **pack(moved, {}, form.compression).groups}
    with TemporaryDirectory() as folder:
        return wire.write(Path(folder) / "update", groups, durable=False).bytes


def compression_page() -> str:
    found = {cell: curve.last_accuracy(LAST) for cell in CELLS if (curve := curve_of(cell)) is not None}
    sizes = {mode: measure_update(Cell(mode, 0).config()) for mode in MODES}
    head = [
        "updates",
        *(f"accuracy, seed {seed}" for seed in range(SEEDS)),
        "to whole, mean",
        "bytes an update",
        "of whole",
    ]
    rows = [
        [
            WORDS[mode],
            *(_accuracy(found, mode, seed) for seed in range(SEEDS)),
            _difference(found, mode),
            f"{sizes[mode]:,}",
            f"{sizes[mode] / sizes['whole']:.3f}",
        ]
        for mode in MODES
    ]
    lines = [
        "# What smaller updates cost",
        "",
        f"Not in the paper. CIFAR-10, NIID-2 with 5 + 1 clients, simple CNN, {ROUNDS} rounds of {STEPS} "
        "steps with 64 examples, weighted by Disco, with every [compression](../compression.md). "
        f"Mean accuracy of the last {LAST} rounds in percent; bytes are those of one client's file, of six a "
        "round.",
        "",
        *table_rows(head, rows, 1),
        "",
        *_describe_swings(),
        "*Not run* says that there is no result yet: `python -m experiments.compression_costs` trains what "
        "is missing.",
    ]
    return "\n".join(lines) + "\n"


def _describe_swings() -> Iterator[str]:
    """How far one run's accuracy goes up and down anyway: what a difference has to be held against."""
    curve = curve_of(Cell("whole", 0))
    if curve is not None:
        last = [100 * (each.accuracy or 0.0) for each in curve.rounds[-LAST:]]
        yield (
            f"With these label skews accuracy swings from round to round: the last {LAST} of whole updates, "
            f"seed 0, have {min(last):.1f} to {max(last):.1f} percent. Over one or two seeds a difference of "
            "a point or two is within that."
        )
        yield ""


def _accuracy(found: Mapping[Cell, float], mode: str, seed: int) -> str:
    value = found.get(Cell(mode, seed))
    return "not run" if value is None else f"{value:.2f}"


def _difference(found: Mapping[Cell, float], mode: str) -> str:
    """To whole updates of the same seed, over the seeds that have both."""
    pairs = [
        found[Cell(mode, seed)] - found[Cell("whole", seed)]
        for seed in range(SEEDS)
        if {Cell(mode, seed), Cell("whole", seed)} <= found.keys()
    ]
    return f"{fmean(pairs):+.2f}" if pairs and mode != "whole" else ""


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What smaller updates cost.")
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--seeds", nargs="+", type=int, choices=range(SEEDS), default=list(range(SEEDS)))
    parser.add_argument("--report-only", action="store_true")
    chosen = parser.parse_args(given)
    if not chosen.report_only:
        cells = [cell for cell in CELLS if cell.mode in chosen.modes and cell.seed in chosen.seeds]
        sweep(list(planned(cells, chosen.data)), processes=chosen.processes)
    for cell in CELLS:
        if (WORK / "compression" / cell.file).exists():
            publish(WORK / "compression" / cell.file, RESULTS / cell.file)
    replace_file(PAGE, compression_page().encode(), durable=False)


if __name__ == "__main__":
    main()
