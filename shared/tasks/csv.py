"""One's own table: texts or numbers, in classes or as a regression whose target is binned for ``d_k``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from shared.config import Frozen
from shared.data import Archive, Examples, FileList, Unlabelled, find_file, opened
from shared.left_out import MEND_OR_SKIP, LeftOut, Reason
from shared.tasks.base import Split, Task
from shared.tasks.regression import Regression, bin_names, increasing
from shared.tasks.tables import fault, natural, rows
from shared.tasks.texts import Length, describe_texts, encoded
from shared.texts import find_nearest

__all__ = ["CSV", "TASK", "CSVRegression"]

Name = Annotated[str, Field(min_length=1, max_length=200)]


class CSVOptions(Frozen):
    """The same at every site. ``classes`` is the class contract; ``edges`` make a regression instead.

    ``columns`` are joined (text) or are one number each (tabular), which ``mean`` and ``deviation``
    standardise: constants that all sites agree on. ``edges`` are the lower ends of all bins but the
    first. ``key`` names the column that tells whose an example is (partition ``by-key``).
    """

    kind: Literal["tabular", "text"] = "tabular"
    columns: tuple[Name, ...] = Field(min_length=1)
    target: Name
    classes: tuple[Name, ...] | None = Field(None, min_length=2)
    edges: tuple[float, ...] | None = Field(None, min_length=1)
    key: Name | None = None
    train: Name = "train.csv"
    test: Name = "test.csv"
    delimiter: str = Field(",", min_length=1, max_length=1)
    length: Length = 200
    mean: tuple[float, ...] | None = None
    deviation: tuple[Annotated[float, Field(gt=0)], ...] | None = None

    @field_validator("edges")
    @classmethod
    def _increasing(cls, edges: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return edges if edges is None else increasing(edges)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.classes is None and self.edges is None:
            raise ValueError("give classes (their names, in the run's order) or edges (a regression's bins)")
        if self.target in self.columns or len(set(self.columns)) != len(self.columns):
            raise ValueError(f"columns must be distinct and without the target {self.target!r}")
        for name, numbers in (("mean", self.mean), ("deviation", self.deviation)):
            if numbers is not None and (self.kind == "text" or len(numbers) != len(self.columns)):
                raise ValueError(f"{name} takes one number for each column of a tabular kind")
        return self


class CSV(Task):
    """Reads ``train.csv`` and ``test.csv`` with a header, at any depth of a folder, zip or tar.

    With ``edges`` among the options the task is a :class:`CSVRegression`.
    """

    name = "csv"
    Options: ClassVar[type[Frozen]] = CSVOptions

    def __new__(cls, options: CSVOptions) -> CSV:
        kind: type[CSV] = cls if options.edges is None else CSVRegression
        return object.__new__(kind)

    def __init__(self, options: CSVOptions) -> None:
        super().__init__(options)
        self.settings = options
        self.tokens = options.kind == "text"
        self.default_model = "textcnn" if self.tokens else "mlp"
        self.input_shape = (options.length,) if self.tokens else (len(options.columns),)
        self.classes = options.classes or ()

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Rows in the order of the file: int16 tokens (N, length), or float32 numbers (N, columns)."""
        options = self.settings
        file = options.train if split == "train" else options.test
        with opened(source, f"a table {file}", self.on_broken) as archive:
            name = find_file(archive, [file])
            table = _read(archive, name, self)
            if not table.targets:
                raise fault(archive, name, None, _say_empty(table))
            keys = _numbered(archive, options, table.keys)
        inputs = self._inputs(table.texts, table.numbers)
        return Examples(inputs, self.target_tensor(table.targets), keys, archive.left_out)

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Each row of each file, which needs a header with the columns; a target is not looked at."""
        archive, names = FileList(files), list[str]()
        texts, numbers = list[str](), list[list[float]]()
        for name in archive.names:

            def on_fault(line: int, said: str, name: str = name) -> None:
                archive.left_out.add(Reason.BROKEN_ROWS, f"{name}, line {line}:", said)

            for line, cells in _cells(
                archive, name, self.settings, list(self.settings.columns), on_fault, is_told=True
            ):
                try:
                    numbers.append(self._numbers(cells))
                except ValueError as error:
                    on_fault(line, str(error))
                    continue
                names.append(f"{name}, line {line}")
                texts.append(" ".join(cells))
        return Unlabelled(tuple(names), self._inputs(texts, numbers), archive.left_out)

    def describe_inputs(self) -> dict[str, Any]:
        """A row's way to the model."""
        options = self.settings
        if self.tokens:
            return describe_texts(options.length) | {"columns": list(options.columns), "joined by": " "}
        return {
            "kind": "table",
            "shape": list(self.input_shape),
            "columns": list(options.columns),
            "scale": "number less mean, over deviation, by column",
            "mean": options.mean,
            "deviation": options.deviation,
        }

    def _inputs(self, texts: list[str], numbers: list[list[float]]) -> Tensor:
        if self.tokens:
            return encoded(texts, self.settings.length)
        return torch.tensor(numbers, dtype=torch.float32).view(-1, *self.input_shape)

    def _numbers(self, cells: list[str]) -> list[float]:
        """The cells of the columns as numbers (ValueError); none of texts."""
        pairs = zip(self.settings.columns, cells, strict=False)
        return [] if self.tokens else [_value(column, _number, text) for column, text in pairs]

    def target_of(self, text: str) -> float:
        """The number that a cell of the target column stands for (ValueError: none)."""
        label = self.class_of(text)
        if label is None:
            guess = self.guess_class(text)
            hint = f" (perhaps {guess[0]!r}: {guess[1]})" if guess else ""
            raise ValueError(f"{text!r} is not one of the classes {list(self.classes)}{hint}")
        return self.classes.index(label)

    def target_tensor(self, targets: list[float]) -> Tensor:
        """Targets as the loss takes them."""
        return torch.tensor(targets, dtype=torch.int64)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tokens as int32, or numbers less ``mean`` and over ``deviation``, float32; never augmented."""
        if self.tokens:
            return inputs.int()
        prepared = inputs.float()
        if self.settings.mean is not None:
            prepared = prepared - torch.tensor(self.settings.mean, device=inputs.device)
        if self.settings.deviation is not None:
            prepared = prepared / torch.tensor(self.settings.deviation, device=inputs.device)
        return prepared


class CSVRegression(Regression, CSV):
    """The same with a number as the target."""

    def __init__(self, options: CSVOptions) -> None:
        super().__init__(options)
        self.edges = options.edges or ()
        self.classes = bin_names(self.edges, whole=False)

    def target_of(self, text: str) -> float:
        """The cell's number."""
        return _number(text)

    def target_tensor(self, targets: list[float]) -> Tensor:
        """Numbers, float32."""
        return torch.tensor(targets, dtype=torch.float32)


TASK = CSV

_TOO_LARGE = 2.0**128 - 2.0**103
"""From here on float32 is infinite."""


@dataclass(frozen=True)
class _Table:
    """``faults``: of the rows that are left out, the line, and the column where it is one cell's fault."""

    texts: list[str]
    numbers: list[list[float]]
    targets: list[float]
    keys: list[str]
    faults: list[_Fault]


@dataclass(frozen=True)
class _Fault:
    line: int
    column: str | None
    said: str


class _WrongCell(ValueError):
    def __init__(self, column: str, said: str) -> None:
        super().__init__(f"column {column!r}: {said}")
        self.column = column


def _read(archive: Archive, name: str, task: CSV) -> _Table:
    options = task.settings

    def on_fault(line: int, said: str, column: str | None = None) -> None:
        if task.on_broken == "decline":
            raise fault(archive, name, line, said, hint=MEND_OR_SKIP)
        archive.left_out.add(Reason.BROKEN_ROWS, f"{name}, line {line}", said)
        table.faults.append(_Fault(line, column, said))

    key = [] if options.key is None else [options.key]
    wanted = [*options.columns, options.target, *key]
    table = _Table([], [], [], [], [])
    for line, cells in _cells(archive, name, options, wanted, on_fault, archive.left_out):
        try:
            _take(table, task, cells)
        except _WrongCell as error:
            on_fault(line, str(error), error.column)
    return table


def _say_empty(table: _Table) -> str:
    """Why no row is left: columns that are wrong all through, as one that is empty, are told as such."""
    if not table.faults:
        return "holds no rows below a header"
    first = table.faults[0]
    example = f"line {first.line}: {first.said}"
    if first.column is not None and all(fault.column == first.column for fault in table.faults):
        return f"has no row with a cell in column {first.column!r} that can be used ({example})"
    return f"has no row that can be used ({example})"


def _take(table: _Table, task: CSV, cells: list[str]) -> None:
    """Add a row, whole or not at all (_WrongCell)."""
    options, width = task.settings, len(task.settings.columns)
    target = _value(options.target, task.target_of, cells[width])
    numbers = task._numbers(cells[:width])
    table.targets.append(target)
    table.texts.append(" ".join(cells[:width]))
    table.numbers.append(numbers)
    table.keys.extend(cells[width + 1 :])


def _cells(
    archive: Archive,
    name: str,
    options: CSVOptions,
    wanted: list[str],
    on_fault: Callable[[int, str], None],
    left_out: LeftOut | None = None,
    *,
    is_told: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """The wanted columns of each row below the header, and the row's line.

    ``is_told``: a model says what the table is like, and no option of whoever reads it.
    """
    found = rows(archive, name, options.delimiter, left_out)
    line, header = next(found, (1, []))
    if missing := [column for column in wanted if column not in header]:
        said = f"looked for the columns {missing}, the header has {header}"
        hint = _hint_at_header(missing, header, options.delimiter if is_told else None)
        raise fault(archive, name, line, said, hint=hint)
    if doubled := [column for column in wanted if header.count(column) > 1]:
        hint = "Rename or remove all but one of each: which one is meant cannot be told."
        raise fault(archive, name, line, f"has more than one column {doubled}", hint=hint)
    places = [header.index(column) for column in wanted]
    for line, row in found:
        if len(row) == len(header):
            yield line, [row[place] for place in places]
        else:
            on_fault(line, f"has {len(row)} fields, the header has {len(header)}")


def _hint_at_header(missing: list[str], header: list[str], delimiter: str | None) -> str:
    """Of the usual reasons for which columns are not found, the one that it is.

    ``delimiter``: which it has to be; None: it can be set.
    """
    for other in (";", "\t", "|", ","):
        if len(header) == 1 and other in header[0]:
            seems = f"The cells seem to be separated by {other!r}: "
            if delimiter is not None:
                return f"{seems}save the table with {delimiter!r}, as the model's were."
            return f"{seems}say so by --task-options '{json.dumps({'delimiter': other})}'."
    known = {column.strip().casefold() for column in header}
    if any(column.strip().casefold() in known for column in missing):
        return "Names are compared letter by letter, capitals and spaces too."
    if nearest := find_nearest(missing[0], header):
        return f"Is {missing[0]!r} the column {nearest[0]!r}? Rename it in the table."
    return "Add the columns to the table; further ones are no matter."


def _value(column: str, read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except ValueError as error:
        raise _WrongCell(column, str(error)) from error


def _number(text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # Python's float takes 3_000, tables do not
    except ValueError:
        value = math.nan
    if math.isfinite(value) and abs(value) >= _TOO_LARGE:
        raise ValueError(f"{text!r} is too large for a number of 32 bits (3.4e38 at most)")
    if not math.isfinite(value):
        mark = " (decimals have a point, and nothing stands between thousands)" if "," in text else ""
        raise ValueError(f"{text!r} is not a finite number{mark}")
    return value


def _numbered(archive: Archive, options: CSVOptions, own: list[str]) -> Tensor | None:
    """Each row's key as its place among the keys of both files, so that a key has one number in both."""
    if options.key is None:
        return None
    known = set(own)
    for name in archive.names:
        if name.rsplit("/", 1)[-1] in (options.train, options.test):
            found = _cells(archive, name, options, [options.key], lambda line, said: None)
            known.update(key for _, (key,) in found)
    numbers = {key: number for number, key in enumerate(sorted(known, key=natural))}
    return torch.tensor([numbers[key] for key in own], dtype=torch.int64)
