"""What can be said of each update of a round: how far it moves the model, where to, its largest number.

The files are read in chunks; memory does not grow with the model or the number of updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared import wire
from shared.aggregation.products import read_chunks

if TYPE_CHECKING:
    from shared.schemas import TensorSpec

__all__ = ["Move", "find_cosines", "find_excess", "measure_move"]

CHUNK = 1 << 16
"""Numbers that are looked at together: 512 KiB as float64, which stay in the processor's cache."""


COSINES_CHUNK = 1 << 14
"""The same of each update of a round: of ten, 1.4 MiB."""


@dataclass(frozen=True)
class Move:
    """How an update moves the model it started from.

    ``norm`` and ``largest`` (magnitude) are those of its displacement, ``start`` is the norm of the model.
    """

    norm: float
    largest: float
    start: float


def measure_move(
    model: Path, update: Path, parameters: Sequence[TensorSpec], start: float | None = None
) -> Move:
    """In float64, the same bits for any number of threads. ``start`` is the model's norm, if it is known."""
    import torch

    squares = squares_of_start = largest = 0.0
    x_chunk, y_chunk = (torch.empty(CHUNK, dtype=torch.float64) for _ in range(2))
    with wire.opened(model) as x, wire.opened(update) as y:
        for spec in parameters:
            before, after = (file.tensor(wire.MODEL, spec.name).reshape(-1) for file in (x, y))
            for first in range(0, before.numel(), CHUNK):
                count = min(CHUNK, before.numel() - first)
                piece = x_chunk[:count].copy_(before[first : first + count]).numpy()
                moved = y_chunk[:count].copy_(after[first : first + count]).numpy()
                moved -= piece
                if start is None:
                    squares_of_start += float(np.einsum("c,c->", piece, piece))
                squares += float(np.einsum("c,c->", moved, moved))
                largest = max(largest, float(moved.max()), -float(moved.min()))
    return Move(math.sqrt(squares), largest, math.sqrt(squares_of_start) if start is None else start)


def find_excess(move: Move, longest: float) -> str | None:
    """Why the update is not believed: it moves the model by more than ``longest`` times the model's norm.

    A model of norm below 1 counts as one of norm 1. None: it may be.
    """
    limit = longest * max(1.0, move.start)
    if move.norm <= limit:
        return None
    return (
        f"the update moves the model by {move.norm:.4g}, more than {longest:g} times "
        f"the norm of the model it started from ({move.start:.4g})"
    )


def find_cosines(
    model: Path, updates: Mapping[int, Path], moves: Mapping[int, Move], parameters: Sequence[TensorSpec]
) -> dict[int, float]:
    """By index, the cosine of each displacement and the mean of the others' directions.

    Each of the others counts by its direction alone, so a long one does not hide the rest. Who does not move,
    or has no others, has none.
    """
    import torch

    moving = [index for index in updates if moves[index].norm > 0]
    if len(moving) < 2:
        return {}
    inverse = np.array([1 / moves[index].norm for index in moving])
    along, whole = np.zeros(len(moving)), 0.0
    paths = [*(updates[index] for index in moving), model]
    for _, _, rows in read_chunks(paths, parameters, longest=COSINES_CHUNK):
        moved = torch.from_numpy(rows)
        total = torch.zeros(moved.shape[1], dtype=torch.float64)
        for row, scale in zip(moved[:-1], inverse, strict=True):
            total.add_(row.sub_(moved[-1]), alpha=scale)
        sums = total.numpy()
        along += np.einsum("kc,c->k", rows[:-1], sums)
        whole += float(np.einsum("c,c->", sums, sums))
    along *= inverse
    # with unit vectors v_k and their sum V: <v_k, V - v_k> / |V - v_k|
    others = np.sqrt(np.maximum(whole - 2 * along + 1, 0.0))
    return {
        index: float(np.clip((dot - 1) / length, -1.0, 1.0))
        for index, dot, length in zip(moving, along.tolist(), others.tolist(), strict=True)
        if length > 1e-6
    }
