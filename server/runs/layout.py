"""What an update of a run must look like, from the run's manifest and its algorithm's declaration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.schemas import RunView
from shared.wire.header import DTYPES

if TYPE_CHECKING:
    from shared.wire import Layout

__all__ = ["HEADER_ALLOWANCE", "Expected", "expected_of", "largest"]

HEADER_ALLOWANCE = 2**20
HEADER_PER_TENSOR = 1024


@dataclass(frozen=True)
class Expected:
    """``max_bytes``: the tensors' own bytes and an allowance for the file's header."""

    task: str
    classes: tuple[str, ...]
    layout: Layout
    max_bytes: int


def expected_of(run: RunView) -> Expected:
    from shared.algorithms import load_algorithm
    from shared.wire import update_layout

    layout = update_layout(run.manifest, load_algorithm(run.config.algorithm).uploads, run.config.buffers)
    return Expected(run.config.task, run.classes, layout, largest(layout))


def largest(layout: Layout) -> int:
    """Bytes of a file of this layout, with an allowance for its header."""
    data = sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in layout.values())
    return data + HEADER_ALLOWANCE + HEADER_PER_TENSOR * len(layout)
