"""The paper's two explorations: a better weight for two clients, and what a local model's accuracy goes with.

Each client of a setting trains alone from the same initial model, as in the first round of a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from experiments.figures import save
from experiments.plan import Cell, configuration
from experiments.records import files_of, read_lines
from experiments.report import heading, table_rows
from experiments.tables import Table
from shared import wire
from shared.config import RunConfig
from shared.discrepancy import discrepancy
from shared.training.workbench import ClientTask, Workbench
from shared.wire.tensors import load_into, state_of
from simulation.jobs import Job, WorkbenchSpec, carry_out
from simulation.results import Results, header

__all__ = ["Trial", "exploration_page", "explore", "find_trials", "pair_of_like_size", "trials"]

RATIOS = tuple(round(0.1 * step, 1) for step in range(11))
LIKE = 0.1
"""Two clients are of like size if they differ by a tenth of the larger at most."""

Say = Callable[[str], None]
Kind = Literal["exploration-1", "exploration-2"]


@dataclass(frozen=True)
class Trial:
    """One seed of an exploration: its configuration and its result file."""

    kind: Kind
    config: RunConfig
    out: Path


def trials(table: Table, results: Path, *, seeds: int) -> list[Trial]:
    """An exploration's trials, one a seed."""
    assert table.kind in ("exploration-1", "exploration-2")
    setting = table.settings[0]
    return [
        Trial(
            table.kind,
            configuration(Cell(setting, "fedavg", "sizes"), seed),
            results / table.kind / f"{setting}-s{seed}.jsonl",
        )
        for seed in range(seeds)
    ]


def explore(trial: Trial, source: Path | None, cache: Path | None = None, say: Say = print) -> None:
    """Carry out a trial and write its JSON lines, whole; ``cache`` keeps decoded data."""
    workbench = WorkbenchSpec.of(trial.config, source, cache).build()
    with tempfile.TemporaryDirectory() as folder:
        alone = _Alone(workbench, Path(folder), say)
        lines = _blends(alone) if trial.kind == "exploration-1" else _correlations(alone)
    trial.out.parent.mkdir(parents=True, exist_ok=True)
    Results(trial.out).rewrite([header(trial.config, "in-process", "torch", workbench.device), *lines])


def pair_of_like_size(sizes: list[int], discrepancies: list[float]) -> tuple[int, int]:
    """Two clients of like size (or the closest) whose discrepancies differ most; the less biased last.

    >>> pair_of_like_size([100, 95, 60], [0.2, 0.9, 0.5])
    (1, 0)
    """
    pairs = list(combinations(range(len(sizes)), 2))

    def unlike(pair: tuple[int, int]) -> float:
        first, second = sizes[pair[0]], sizes[pair[1]]
        return abs(first - second) / max(first, second)

    alike = [pair for pair in pairs if unlike(pair) <= LIKE] or [min(pairs, key=unlike)]
    first, second = max(alike, key=lambda pair: abs(discrepancies[pair[0]] - discrepancies[pair[1]]))
    return (first, second) if discrepancies[first] >= discrepancies[second] else (second, first)


# ---------------------------------------------------------------- the two explorations


class _Alone:
    """Clients that train alone from the initial model, and the score of any model."""

    def __init__(self, workbench: Workbench, folder: Path, say: Say) -> None:
        self.workbench = workbench
        self._folder, self._say = folder, say
        wire.write(folder / "model", {wire.MODEL: state_of(workbench.model)})
        self._test = workbench.test_examples

    def sizes(self) -> list[int]:
        return [len(self.workbench.training_examples(index)) for index in range(self.workbench.clients)]

    def discrepancies(self) -> list[float]:
        """L2 distance to uniform, as in the paper's exploration."""
        workbench = self.workbench
        return [
            discrepancy(workbench.class_counts(index), "uniform", "l2") for index in range(workbench.clients)
        ]

    def model(self, index: int) -> Mapping[str, Tensor]:
        folder, names = self._folder, [spec.name for spec in self.workbench.manifest]
        task = ClientTask(1, index, 1.0, took_part=False, model=folder / "model")
        job = Job(task, folder / f"update-{index}", folder / f"kept-{index}")
        carry_out(self.workbench, job)
        self._say(f"client {index} has trained")
        return wire.read_group(job.update, wire.MODEL, names)

    def accuracy(self, tensors: Mapping[str, Tensor]) -> float:
        load_into(self.workbench.model, tensors)
        return float(self.workbench.evaluate(self._test).accuracy or 0.0)


def _blends(alone: _Alone) -> list[dict[str, Any]]:
    """``w = (1 - r) A + r B`` for r from 0 to 1, B the less biased of two clients of like size."""
    sizes, distances = alone.sizes(), alone.discrepancies()
    first, second = pair_of_like_size(sizes, distances)
    a, b = alone.model(first), alone.model(second)
    chosen = {
        "kind": "pair",
        "clients": [first, second],
        "sizes": [sizes[first], sizes[second]],
        "discrepancies": [round(distances[first], 6), round(distances[second], 6)],
    }
    blends = [
        {"kind": "blend", "r": r, "accuracy": alone.accuracy({n: (1 - r) * a[n] + r * b[n] for n in a})}
        for r in RATIOS
    ]
    return [chosen, *blends]


def _correlations(alone: _Alone) -> list[dict[str, Any]]:
    """Each client's size, discrepancy and the accuracy of its local model."""
    sizes, distances = alone.sizes(), alone.discrepancies()
    return [
        {
            "kind": "client",
            "client": index,
            "size": sizes[index],
            "discrepancy": round(distances[index], 6),
            "accuracy": alone.accuracy(alone.model(index)),
        }
        for index in range(len(sizes))
    ]


# ---------------------------------------------------------------- pages


Found = Mapping[int, list[dict[str, Any]]]
"""What the trials wrote, by seed, without the first line."""


def find_trials(table: Table, results: Path) -> Found:
    """The trials that were run, of the seeds that the table asks for.

    Raises:
        InvalidConfiguration: one is of another configuration.
    """
    setting = table.settings[0]
    config = partial(configuration, Cell(setting, "fedavg", "sizes"))
    files = files_of(results / table.kind, setting)
    found = {seed: read_lines(path, config(seed))[1:] for seed, path in files.items() if seed < table.seeds}
    return {seed: lines for seed, lines in found.items() if lines}


def exploration_page(table: Table, results: Path, folder: Path) -> tuple[str, int]:
    """The Markdown of the page (its figure is written into ``folder``), and how many trials there are."""
    found = find_trials(table, results)
    lines = [
        *heading(table),
        f"{len(found)} of {table.seeds} trials were run." if found else "Not yet run.",
        "",
    ]
    if found and table.kind == "exploration-1":
        lines += _blend_rows(found)
        save(folder, table.name, "Accuracy of (1 - r) A + r B", lambda axes: _paint_blends(axes, found))
    elif found:
        lines += _correlation_rows(found)
        save(folder, table.name, "Local models", lambda axes: _paint_clients(axes, found))
    if found:
        lines += ["", f"![{table.name}.svg]({table.name}.svg)"]
    return "\n".join(lines).rstrip() + "\n", len(found)


def _blend_rows(found: Found) -> list[str]:
    rows = []
    for trial, (pair, *blends) in found.items():
        top = max(blends, key=lambda blend: float(blend["accuracy"]))
        scores = [f"{100 * blend['accuracy']:.2f}" for blend in blends]
        rows.append([str(trial), f"{pair['sizes']}, {pair['discrepancies']}", *scores, f"{top['r']:g}"])
    header = ["trial", "sizes and discrepancies of A, B", *(f"r = {r:g}" for r in RATIOS), "best r"]
    return table_rows(header, rows)


def _correlation_rows(found: Found) -> list[str]:
    rows = []
    for trial, clients in found.items():
        accuracies = [float(client["accuracy"]) for client in clients]
        row = [str(trial), f"{len(clients)} clients"]
        for name in ("size", "discrepancy"):
            row.append(_correlation([float(client[name]) for client in clients], accuracies))
        rows.append(row)
    return table_rows(["trial", "", "correlation with size", "with discrepancy"], rows)


def _correlation(one: list[float], other: list[float]) -> str:
    """Pearson's, or a dash where one of them does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return "-"
    return f"{np.corrcoef(one, other)[0, 1]:+.2f}"


def _paint_blends(axes: Any, found: Found) -> None:
    for trial, (_, *blends) in found.items():
        axes.plot(
            [b["r"] for b in blends], [100 * b["accuracy"] for b in blends], "o-", label=f"trial {trial}"
        )
    axes.set(xlabel="r, weight of the less biased client", ylabel="test accuracy, %")
    axes.legend(fontsize=8)


def _paint_clients(axes: Any, found: Found) -> None:
    clients = [client for trial in found.values() for client in trial]
    points = axes.scatter(
        [c["discrepancy"] for c in clients],
        [100 * c["accuracy"] for c in clients],
        c=[c["size"] for c in clients],
    )
    axes.set(xlabel="discrepancy (L2)", ylabel="accuracy of the local model, %")
    axes.figure.colorbar(points, ax=axes, label="examples")
