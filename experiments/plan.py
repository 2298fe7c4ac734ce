"""A table into runs: which, in which order, and in which file each has its result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.tables import BASE, Table, methods, settings
from shared.config import DiscoWeighting, RunConfig
from shared.problems import InvalidConfiguration
from shared.weightings import available

__all__ = ["Cell", "PlannedRun", "cells", "configuration", "expand", "quickened", "weighting_of"]

VARIANTS: dict[str, dict[str, Any]] = {
    "qfedavg-q0.1": {"kind": "qfedavg", "q": 0.1},
    "fedlws-a0.9-b0.05": {"kind": "fedlws", "mean": {"kind": "disco", "a": 0.9, "b": 0.05}},
}
"""Other weightings than Disco with options of their own."""

METRICS = {"disco-l1": "l1", "disco-l2": "l2", "disco-cosine": "cosine"}
STANDARD = DiscoWeighting()


@dataclass(frozen=True)
class Cell:
    """A place in a table; ``weighting`` as the table writes it, ``resolved`` as the result file does.

    Tables that resolve a cell alike share its runs.
    """

    setting: str
    method: str
    weighting: str

    @property
    def resolved(self) -> str:
        if self.weighting == BASE:
            return methods()[self.method].base
        standard = f"a{STANDARD.a:g}-b{STANDARD.b:g}"
        return "disco" if self.weighting == standard else self.weighting


@dataclass(frozen=True)
class PlannedRun:
    """A cell with a seed: the run's configuration, its result file, and how many rounds are asked for."""

    cell: Cell
    seed: int
    config: RunConfig
    rounds: int

    @property
    def file(self) -> Path:
        """Where the result is, from the folder of results."""
        return Path(self.cell.setting) / f"{self.cell.method}-{self.cell.resolved}-s{self.seed}.jsonl"


def cells(table: Table) -> tuple[Cell, ...]:
    """The table's cells, row by row."""
    return tuple(
        Cell(setting, method, weighting)
        for setting in table.settings
        for method in table.methods
        for weighting in table.weightings_of(method)
    )


def expand(
    table: Table, *, seeds: int | None = None, rounds: int | None = None, only: str = "*"
) -> tuple[PlannedRun, ...]:
    """The table's runs, seed by seed, so that an interrupted call leaves comparable ones.

    Seed s changes partition, initial model, draws and batches alike, and is the same in every cell:
    runs with and without Disco are pairs. ``only`` is a pattern (``*`` and ``?``) of run names.

    >>> from experiments.tables import load_table
    >>> [run.file.name for run in expand(load_table("stragglers"), seeds=1)]
    ['fedavg-sizes-s0.jsonl', 'fedavg-disco-s0.jsonl']
    """
    runs: dict[Path, PlannedRun] = {}
    for seed in range(seeds or table.seeds):
        for cell in cells(table):
            config = configuration(cell, seed)
            wanted = min(config.rounds, rounds or table.rounds or config.rounds)
            run = PlannedRun(cell, seed, config, wanted)
            if fnmatch(config.name, only):
                runs.setdefault(run.file, run)
    return tuple(runs.values())


def quickened(table: Table) -> Table:
    """What ``--quick`` runs: the first rounds of one seed of some cells, of the very same runs."""
    quick = table.quick
    chosen = quick.settings or table.settings
    named = quick.methods or table.methods
    published = {
        setting: {method: figures for method, figures in rows.items() if method in named}
        for setting, rows in table.published.items()
        if setting in chosen
    }
    return table.model_copy(
        update={
            "settings": chosen,
            "methods": named,
            "seeds": 1,
            "rounds": quick.rounds,
            "published": published,
        }
    )


def configuration(cell: Cell, seed: int) -> RunConfig:
    """The cell's run.

    Raises:
        InvalidConfiguration: the setting, method or weighting makes no run; names the field.
    """
    setting, method = settings()[cell.setting], methods()[cell.method]
    fields: dict[str, Any] = {
        **setting.config,
        "name": f"{cell.setting}-{cell.method}-{cell.resolved}-s{seed}",
        "seed": seed,
        "algorithm": method.algorithm,
        "local": {**setting.config.get("local", {}), **method.local},
        "weighting": weighting_of(cell.resolved, setting.disco),
    }
    try:
        return RunConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidConfiguration(
            f"{fields['name']}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        ) from None


def weighting_of(name: str, disco: dict[str, Any]) -> dict[str, Any]:
    """A weighting by its name in a table: a kind, disco-METRIC, aA-bB, or one of :data:`VARIANTS`.

    >>> weighting_of("a0.2-b0.05", {})
    {'kind': 'disco', 'a': 0.2, 'b': 0.05}
    """
    if name == "disco":
        return {"kind": "disco", **disco}
    if name in available():
        return {"kind": name}
    if name in VARIANTS:
        return VARIANTS[name]
    if name in METRICS:
        return {"kind": "disco", "metric": METRICS[name], **disco}
    if pair := re.fullmatch(r"a([\d.]+)-b([\d.]+)", name):
        return {"kind": "disco", "a": float(pair[1]), "b": float(pair[2]), **disco}
    raise InvalidConfiguration(
        f"weighting {name!r} is not known",
        hint=f"{', '.join((*available(), *VARIANTS))}, disco-METRIC or aA-bB.",
    )
