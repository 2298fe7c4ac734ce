"""A table into runs: which, in which order, and in which file each has its result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.tables import BASE, TUNED, Table, methods, settings
from shared.config import DiscoWeighting, RunConfig, describe_faults
from shared.documents import parse_yaml
from shared.problems import InvalidConfiguration
from shared.weightings import AnyWeighting, available, load_weighting
from shared.weightings.base import Weighting

__all__ = [
    "Cell",
    "PlannedRun",
    "cells",
    "configuration",
    "expand",
    "quickened",
    "weighting_of",
    "with_weightings",
]

VARIANTS: dict[str, dict[str, Any]] = {
    "qfedavg-q0.1": {"kind": "qfedavg", "q": 0.1},
    "fedlws-a0.9-b0.05": {"kind": "fedlws", "mean": {"kind": "disco", "a": 0.9, "b": 0.05}},
}
"""Other weightings than Disco with options of their own."""

NUMBER = r"[0-9]+(?:\.[0-9]+)?"
METRICS = {"disco-l1": "l1", "disco-l2": "l2", "disco-cosine": "cosine"}
STANDARD = DiscoWeighting()
WEIGHTING: TypeAdapter[Weighting] = TypeAdapter(AnyWeighting)


@dataclass(frozen=True)
class Cell:
    """A place in a table; ``weighting`` as the table writes it, ``resolved`` as the result file does.

    Tables that resolve a cell alike share its runs. A weighting that is no table's is written ``NAME={...}``,
    with what a run's configuration says of it.
    """

    setting: str
    method: str
    weighting: str

    @property
    def resolved(self) -> str:
        if self.weighting == BASE:
            return methods()[self.method].base
        standard = f"a{STANDARD.a:g}-b{STANDARD.b:g}"
        return "disco" if self.weighting == standard else self.label

    @property
    def label(self) -> str:
        """The weighting's name alone."""
        return self.weighting.partition("=")[0]


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
        "weighting": weighting_of(cell.weighting if "=" in cell.weighting else cell.resolved, setting.disco),
    }
    try:
        return RunConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidConfiguration(
            f"{fields['name']}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        ) from None


def weighting_of(name: str, disco: dict[str, Any]) -> dict[str, Any]:
    """A weighting by its name in a table: a kind, disco-METRIC, aA-bB, a variant, or NAME={...}.

    >>> weighting_of("a0.2-b0.05", {})
    {'kind': 'disco', 'a': 0.2, 'b': 0.05}
    >>> weighting_of("mine={kind: disco, a: 0.3}", {})
    {'kind': 'disco', 'a': 0.3}
    """
    if "=" in name:
        return _read_definition(name)
    if name == "disco":
        return {"kind": "disco", **disco}
    if name in available():
        return {"kind": name}
    if name in VARIANTS:
        return VARIANTS[name]
    if name in METRICS:
        return {"kind": "disco", "metric": METRICS[name], **disco}
    if pair := re.fullmatch(rf"a({NUMBER})-b({NUMBER})", name):
        return {"kind": "disco", "a": float(pair[1]), "b": float(pair[2]), **disco}
    raise InvalidConfiguration(
        f"weighting {name!r} is not known",
        hint=f"{', '.join((*available(), *VARIANTS))}, disco-METRIC or aA-bB.",
    )


# ---------------------------------------------------------------- weightings that no table has


def with_weightings(table: Table, given: Sequence[str]) -> Table:
    """The table with further weightings, each for all of its methods.

    ``given`` are names of a table, import paths of classes, or NAME={...}: what a run's configuration says.

    >>> from experiments.tables import load_table
    >>> given = ["entropy", "mild={kind: disco, a: 0.1}"]
    >>> with_weightings(load_table("stragglers"), given).weightings_of("fedavg")
    ('base', 'disco', 'entropy', 'mild={kind: disco, a: 0.1}')

    Raises:
        InvalidConfiguration: no such weighting, a definition that is none, or a name that is taken.
    """
    added: dict[str, str] = {}
    for one in map(_check_weighting, given):
        label = one.partition("=")[0]
        if added.setdefault(label, one) != one:
            raise InvalidConfiguration(
                f"weighting: {label!r} is the name of two, {added[label]} and {one}.",
                hint="Write NAME={...} with another name for one of them.",
            )
    return table.model_copy(update={"added": tuple(added.values())})


def _check_weighting(given: str) -> str:
    if "=" not in given and ":" in given:
        given = f'{given.rpartition(":")[2].lower()}={{kind: "{given}"}}'
    label, defines, _ = given.partition("=")
    if defines:
        _check_label(label)
    try:
        load_weighting(WEIGHTING.validate_python(weighting_of(given, {})))
    except ValidationError as error:
        raise InvalidConfiguration(f"weighting: {given}: {describe_faults(error)}.") from None
    return given


def _check_label(label: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", label):
        raise InvalidConfiguration(
            f"weighting: {label!r} is no name for runs.", hint="Use lower case, digits, points and hyphens."
        )
    if re.search(r"-s[0-9]+$", label):
        raise InvalidConfiguration(
            f"weighting: {label!r} ends like a run's name, in a seed.", hint="Choose another name."
        )
    if label in (BASE, TUNED) or _is_known(label):
        raise InvalidConfiguration(f"weighting: {label!r} is a table's already.", hint="Choose another name.")


def _is_known(label: str) -> bool:
    try:
        return bool(weighting_of(label, {}))
    except InvalidConfiguration:
        return False


def _read_definition(given: str) -> dict[str, Any]:
    label, _, text = given.partition("=")
    found = parse_yaml(text, f"weighting {label}")
    if not isinstance(found, dict) or "kind" not in found:
        raise InvalidConfiguration(
            f"weighting: {given!r} defines none.",
            hint="Write NAME={kind: ..., ...}, as a configuration's `weighting`.",
        )
    return found
