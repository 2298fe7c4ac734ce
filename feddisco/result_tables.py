"""Result files of simulations as tables: for a spreadsheet, a DataFrame, a plot."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.problems import InvalidConfiguration
from shared.scores import rank
from simulation.results import Results, config_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ResultFile",
    "Row",
    "Table",
    "format_table",
    "import_pandas",
    "list_files",
    "read_results",
    "scores_of",
    "tabulate_rounds",
    "tabulate_runs",
    "write_table",
]

Row = dict[str, Any]
ROUND = ("round", "accuracy", "loss", "seconds", "model")
OWN = frozenset({"run", "seed", *ROUND})
"""Columns that no measure of a task's own takes the place of."""


@dataclass(frozen=True)
class ResultFile:
    """A run's configuration, flat as ``weighting.a``, and the lines of its rounds."""

    run: str
    seed: int
    flat: Mapping[str, Any]
    rounds: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """Rows that may lack some of the ``columns``."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """As a DataFrame. Raises InvalidConfiguration if pandas is not installed."""
        frame: pd.DataFrame = import_pandas().DataFrame(list(self.rows), columns=list(self.columns))
        return frame


def list_files(given: Iterable[Path]) -> list[Path]:
    """The files themselves, and of folders the result files in them. Raises InvalidConfiguration for none."""
    paths = list(given)
    found = [path for each in paths for path in (sorted(each.glob("*.jsonl")) if each.is_dir() else [each])]
    if not found:
        raise InvalidConfiguration(
            f"There are no result files (*.jsonl) in {', '.join(map(str, paths))}.",
            hint="Name files or folders that `feddisco simulate` or `feddisco sweep` has written.",
        )
    return found


def read_results(path: Path) -> ResultFile:
    """Raises InvalidConfiguration for what is no result file."""
    if not path.exists():
        raise InvalidConfiguration(f"There is no file or folder {path}.")
    lines = Results(path).lines()
    if not lines:
        raise InvalidConfiguration(f"{path} has no line yet.", hint="Its run has only just begun, or failed.")
    config = config_of(lines, path)
    rounds = tuple(line for line in lines if line["kind"] == "round")
    return ResultFile(config.name, config.seed, dict(_flatten(config.model_dump(mode="json"))), rounds)


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield (
                f"{prefix}{name}",
                value if isinstance(value, str | int | float | None) else json.dumps(value),
            )


def _differing(files: Sequence[ResultFile]) -> list[str]:
    """Settings in which the runs differ, beside name and seed."""
    names = dict.fromkeys(name for file in files for name in file.flat)
    of_itself = {"name", "seed", "partition.seed"}
    return [
        name
        for name in names
        if name not in of_itself and len({repr(file.flat.get(name)) for file in files}) > 1
    ]


def _tabulate(files: Sequence[ResultFile], results: Sequence[tuple[ResultFile, Row]]) -> Table:
    """Each result beside the settings of its run. A setting of a result's name is ``config.NAME``."""
    taken = {"run", "seed"}.union(*(row for _, row in results))
    columns = {name: f"config.{name}" if name in taken else name for name in _differing(files)}
    rows = [
        {"run": file.run, "seed": file.seed}
        | {column: file.flat.get(name) for name, column in columns.items()}
        | row
        for file, row in results
    ]
    return Table(tuple(dict.fromkeys(name for row in rows for name in row)), tuple(rows))


def tabulate_rounds(paths: Sequence[Path]) -> Table:
    """A row for each round of each run: settings that differ, scores, seconds, the model's digest."""
    files = [read_results(path) for path in paths]
    return _tabulate(files, [(file, scores_of(line)) for file in files for line in file.rounds])


def scores_of(line: Row) -> Row:
    """A round's line as a row: scores, by category and of shadows too, seconds, the model's digest."""
    plain = {name: line[name] for name in ROUND}
    categories = {f"accuracy: {name}": value for name, value in line["per_category"].items()}
    shadows = {
        f"shadow {name}: {score}": made[score]
        for name, made in line.get("shadows", {}).items()
        for score in ("accuracy", "loss")
    }
    measures = {f"measure {name}" if name in OWN else name: v for name, v in line["measures"].items()}
    row: Row = plain | measures | categories | shadows
    return row


def tabulate_runs(paths: Sequence[Path]) -> Table:
    """A row for each run: settings that differ, rounds, last and best accuracy, last loss, seconds."""
    files = [read_results(path) for path in paths]
    return _tabulate(files, [(file, _summary(file.rounds)) for file in files])


def _summary(rounds: Sequence[Row]) -> Row:
    scored = [line for line in rounds if line["accuracy"] is not None or line["loss"] is not None]
    accuracy = {line["round"]: line["accuracy"] for line in scored}
    best = next(iter(rank(accuracy, "accuracy")), None)
    return {
        "rounds": len(rounds),
        "last accuracy": scored[-1]["accuracy"] if scored else None,
        "last loss": scored[-1]["loss"] if scored else None,
        "best accuracy": None if best is None else accuracy[best],
        "best round": best,
        "seconds": round(sum(line["seconds"] for line in rounds), 3),
    }


def format_table(table: Table) -> str:
    """As CSV, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, table.columns)
    writer.writeheader()
    writer.writerows(table.rows)
    return text.getvalue()


def write_table(table: Table, out: Path) -> None:
    """As CSV, or as Parquet where the name ends so.

    Raises:
        InvalidConfiguration: another ending, or what Parquet needs is not installed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        out.write_bytes(format_table(table).encode())
    elif out.suffix == ".parquet":
        try:
            table.frame.to_parquet(out, index=False)
        except ImportError:
            raise InvalidConfiguration(
                "Parquet needs pyarrow, which is not installed.",
                hint="pip install 'feddisco[tables]'",
            ) from None
    else:
        raise InvalidConfiguration(f"{out}: a table is written as .csv or .parquet.")


def import_pandas() -> Any:
    """Raises InvalidConfiguration if it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError:
        raise InvalidConfiguration(
            "tables need pandas, which is not installed.", hint="pip install 'feddisco[tables]'"
        ) from None
