"""``feddisco sweep``: one configuration, varied in some settings and over seeds, run side by side."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddisco.admin import check_config, load_config
from feddisco.result_tables import tabulate_rounds, tabulate_runs
from shared.config import RunConfig
from shared.documents import parse_yaml
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    import pandas as pd

    from simulation.kernels import KernelsName
    from simulation.sweep import Say, Swept

__all__ = ["SweepResult", "read_choice", "sweep", "vary"]

LONGEST_NAME = 63


@dataclass(frozen=True)
class SweepResult:
    """How each run ended, and what is in their files; tables need ``pip install 'feddisco[tables]'``."""

    folder: Path
    configs: tuple[RunConfig, ...]
    ended: tuple[Swept, ...]

    @property
    def paths(self) -> list[Path]:
        """The result files, in the order of the configurations."""
        return [self.folder / f"{config.name}.jsonl" for config in self.configs]

    @property
    def rounds(self) -> pd.DataFrame:
        """A row for each round of each run, with the settings that differ between them."""
        return tabulate_rounds(self.paths).frame

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each run: its settings, its last and its best accuracy, and the round of that."""
        return tabulate_runs(self.paths).frame


def read_choice(text: str) -> tuple[str, list[Any]]:
    """A setting and its values, which are YAML.

    >>> read_choice("weighting.a=0,0.5,1")
    ('weighting.a', [0, 0.5, 1])
    >>> read_choice("weighting={kind: sizes},{kind: disco, a: 0.5}")
    ('weighting', [{'kind': 'sizes'}, {'kind': 'disco', 'a': 0.5}])
    """
    name, equals, values = text.partition("=")
    found = parse_yaml(f"[{values}]", f"--set {text!r}")
    if not (name.strip() and equals and found):
        raise InvalidConfiguration(
            f"--set {text!r} is no setting with values.", hint="Write --set weighting.a=0,0.5,1, for example."
        )
    return name.strip(), found


def vary(config: RunConfig, choices: Mapping[str, Sequence[Any]], seeds: int = 1) -> list[RunConfig]:
    """The configuration with every combination of the values, each with ``seeds`` seeds from its own on.

    A name says what its run has of its own: ``demo-a0.5-s1``.

    Raises:
        InvalidConfiguration: a combination is not valid, or there is no such setting.
    """
    names = list(choices)
    found: dict[str, RunConfig] = {}
    for values in itertools.product(*choices.values()):
        for seed in range(config.seed, config.seed + seeds):
            document = config.model_dump(mode="json")
            for name, value in zip(names, values, strict=True):
                _put(document, name, copy.deepcopy(value))
            if "seed" not in choices:
                document["seed"] = seed
            parts = [_describe(name, value) for name, value in zip(names, values, strict=True)]
            label = "-".join([config.name, *parts, *([f"s{seed}"] if seeds > 1 else [])])
            document["name"] = _shorten(label, len(found))
            made = check_config(document, f"The configuration with {', '.join(parts) or 'no change'}")
            if made.name in found:
                made = made.model_copy(update={"name": _shorten(f"{made.name[:50]}-n{len(found)}", 0)})
            found[made.name] = made
    return list(found.values())


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set ``weighting.a``; a part that is not there yet, or is one word for its kind, becomes a mapping."""
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        if not isinstance(place.get(parent), dict):
            place[parent] = {}
        place = place[parent]
    place[last] = value


def _describe(name: str, value: Any) -> str:
    """What a name has of a choice: the last word of the setting, and its value.

    >>> _describe("weighting.a", 0.5), _describe("weighting", {"kind": "sizes"})
    ('a0.5', 'weighting-sizes')
    """
    word = name.rpartition(".")[2]
    if isinstance(value, dict):
        return _clean("-".join([word, *map(str, value.values())]))
    return _clean(f"{word}{value}" if isinstance(value, int | float) else f"{word}-{value}")


def _clean(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-")


def _shorten(label: str, number: int) -> str:
    """A run's name has 63 characters; a longer one ends with the number of its run in the sweep."""
    return label if len(label) <= LONGEST_NAME else f"{label[: LONGEST_NAME - 6].rstrip('-')}-n{number}"


def sweep(
    config: RunConfig | Mapping[str, Any] | str | Path,
    choices: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int = 1,
    out: str | Path,
    data: str | Path | None = None,
    cache: str | Path | None = None,
    processes: int = 1,
    kernels: KernelsName = "torch",
    device: str = "cpu",
    say: Say = lambda line: None,
) -> SweepResult:
    """Run every combination of ``choices`` with ``seeds`` seeds; result files are put into ``out``.

    A call that was interrupted is repeated as it is: finished runs are left, others go on after their last
    round. ``processes`` runs are done side by side.

    Raises:
        InvalidConfiguration: names each field and the value received.
    """
    from simulation.sweep import Planned
    from simulation.sweep import sweep as carry_out

    given = _check(config)
    folder = Path(out)
    configs = vary(given, choices or {}, seeds)
    planned = [
        Planned(
            each,
            folder / f"{each.name}.jsonl",
            source=None if data is None else Path(data),
            cache=None if cache is None else Path(cache),
            kernels=kernels,
            device=device,
        )
        for each in configs
    ]
    return SweepResult(folder, tuple(configs), tuple(carry_out(planned, processes=processes, say=say)))


def _check(config: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    return (
        check_config(dict(config), "The configuration")
        if isinstance(config, Mapping)
        else load_config(config)
    )
