"""Facebook Comment Volume: comments in the next hours (Singh, Sandhu, Kumar, 2015; UCI, CC BY 4.0).

A regression on 53 features of a post. The model learns ``log(1 + comments)``. The published losses of
FedDisco (0.432, 0.407) say neither scale nor bins nor model, so they are not comparable to ours.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from shared.config import Frozen
from shared.data import Archive, Examples, FileList, Unlabelled, find_file, opened
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split
from shared.tasks.regression import Regression, bin_names, increasing

__all__ = ["TASK", "FacebookComments"]

COLUMNS = 54  # 53 features, then the target
CATEGORY = 3
CATEGORIES = 107  # 106 by its description, but the test file has a 107th
BASE_HOURS, HORIZON_HOURS = 34, 38  # 0 to 72 hours since the post, 1 to 24 hours ahead
WEEKDAYS = slice(39, 53)  # of the post and of the moment, one-hot
COUNTS = [c for c in range(WEEKDAYS.start) if c not in (CATEGORY, BASE_HOURS, HORIZON_HOURS)]
LOG_SCALE = 4.0
"""Divides the logarithms: constants instead of means, since nobody may see all sites' data."""

CEILING = 20.0
"""Outputs above (exp(20) comments) count as this one, so that the error stays a finite number."""


class FacebookOptions(Frozen):
    """``edges`` are the lower ends of the bins beside 0, ``variant`` the training file (1 to 5)."""

    edges: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 11, 51, 201), min_length=1)
    variant: int = Field(1, ge=1, le=5)

    @field_validator("edges")
    @classmethod
    def _increasing(cls, edges: tuple[int, ...]) -> tuple[int, ...]:
        increasing(edges)
        return edges


class FacebookComments(Regression):
    """Reads ``Features_Variant_N.csv`` and ``Features_TestSet.csv`` as in UCI's ``Dataset.zip``."""

    name = "facebook-comments"
    Options = FacebookOptions
    input_shape = (len(COUNTS) + CATEGORIES + 2 + 14,)

    def __init__(self, options: FacebookOptions) -> None:
        super().__init__(options)
        self.edges = options.edges
        self.classes = bin_names(options.edges, whole=True)
        self._files = {"train": f"Features_Variant_{options.variant}.csv", "test": "Features_TestSet.csv"}

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Posts in the order of the file: float32 features (N, 159), float32 comments (N,)."""
        with opened(source, f"Facebook Comment Volume ({self._files[split]})", self.on_broken) as archive:
            table = _table(archive, find_file(archive, [self._files[split]]))
        return Examples(torch.from_numpy(_features(table)), torch.from_numpy(table[:, -1].astype(np.float32)))

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Each row of each file, with or without the last column (the comments)."""
        archive = FileList(files)
        tables = [_table(archive, name, needs_target=False) for name in archive.names]
        pairs = zip(archive.names, tables, strict=True)
        names = (f"{name}, row {row + 1}" for name, table in pairs for row in range(len(table)))
        rows = np.concatenate([np.empty((0, COLUMNS)), *tables])
        return Unlabelled(tuple(names), torch.from_numpy(_features(rows)))

    def describe_inputs(self) -> dict[str, Any]:
        """See :func:`_features`."""
        return {
            "kind": "table",
            "shape": list(self.input_shape),
            "columns": f"the {COLUMNS - 1} features of UCI's Facebook Comment Volume, in its order",
            "scale": f"counts: sign(x) log(1 + |x|) / {LOG_SCALE:g}; the page's category one-hot; hours as "
            "shares of their range; weekdays as they are",
        }

    def learned(self, targets: Tensor) -> Tensor:
        """The logarithm of one more than the comments."""
        return torch.log1p(targets)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Comments; never fewer than none."""
        return torch.expm1(outputs.clamp(0, CEILING))


TASK = FacebookComments


def _table(archive: Archive, name: str, needs_target: bool = True) -> NDArray[np.float64]:
    """(N, 54), checked; a last column that is not needed and not there is 0."""
    where = f"data: {name} in {archive.path}"
    try:
        table = np.loadtxt(io.BytesIO(archive.read(name)), delimiter=",", ndmin=2)
    except ValueError as error:
        raise InvalidConfiguration(f"{where} is not a table of numbers: {error}.") from error
    if table.shape[1:] == (COLUMNS - 1,) and not needs_target:
        table = np.hstack([table, np.zeros((len(table), 1))])
    if table.shape[1:] != (COLUMNS,) or not len(table):
        raise InvalidConfiguration(f"{where} has {table.shape} rows and columns, not {COLUMNS} columns.")
    category, target = table[:, CATEGORY], table[:, -1]
    for column, values, good in (
        (CATEGORY, category, np.isin(category, np.arange(1, CATEGORIES + 1))),
        (COLUMNS - 1, target, (target >= 0) & (target == np.floor(target))),
    ):
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise InvalidConfiguration(
                f"{where}, row {row + 1}, column {column + 1}: {values[row]:g} is no "
                f"{f'page category (1 to {CATEGORIES})' if column == CATEGORY else 'number of comments'}."
            )
    return table


def _features(table: NDArray[np.float64]) -> NDArray[np.float32]:
    """Counts as signed logarithms, the category one-hot, hours as shares of their range; weekdays as are."""
    counts = table[:, COUNTS]
    logs = np.sign(counts) * np.log1p(np.abs(counts)) / LOG_SCALE
    categories = np.eye(CATEGORIES)[table[:, CATEGORY].astype(int) - 1]
    hours = table[:, [BASE_HOURS, HORIZON_HOURS]] / (72, 24)
    return np.hstack([logs, categories, hours, table[:, WEEKDAYS]]).astype(np.float32)
