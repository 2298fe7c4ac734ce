"""What can be said of each update of a round: how far it moves the model, where to, its largest number.

The files are read in chunks; memory does not grow with the model or the number of updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared import wire
from shared.aggregation.products import MOST_OPEN, read_chunks

if TYPE_CHECKING:
    from shared.schemas import TensorSpec
    from shared.weightings.base import Vector
    from shared.wire import Numbers

__all__ = ["Move", "find_cosines", "find_excess", "measure_move"]

CHUNK = 1 << 16
"""Numbers that are looked at together: 256 KiB as float32, which stay in the processor's cache."""


COSINES_CHUNK = 1 << 18
"""The same of all updates of a round together."""

TINY, HUGE = 1e-12, 1e15
"""Between these, squares of displacements and their sums are in the range of float32, with room to spare."""

SHORT = 0.1
"""Where the others' directions cancel each other to less than this, float32 leaves too few digits."""


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
    """Each figure to some 1e-6 of it, the same bits for any number of threads.

    ``start`` is the model's norm, if it is known.
    """
    squares = squares_of_start = largest = 0.0
    names = [spec.name for spec in parameters]
    room = np.empty(CHUNK, np.float32)
    with wire.opened(model) as x, wire.opened(update) as y, np.errstate(over="ignore"):
        for before, after in wire.abreast([x, y], wire.MODEL, names):
            for first in range(0, len(before), CHUNK):
                old, new = before[first : first + CHUNK], after[first : first + CHUNK]
                if start is None:
                    squares_of_start += _look(old)[0]
                square, high = _look_at_move(old, new, room)
                squares, largest = squares + square, max(largest, high)
    return Move(math.sqrt(squares), largest, math.sqrt(squares_of_start) if start is None else start)


def _look_at_move(old: Numbers, new: Numbers, room: Numbers) -> tuple[float, float]:
    """The squares' sum of a piece of the displacement, and its largest magnitude.

    Float32 is subtracted into ``room``: memory that is new for each piece costs more than the subtraction.
    """
    out = room[: len(new)] if old.dtype == new.dtype == room.dtype else None
    square, high = _look(np.subtract(new, old, out=out))
    if math.isfinite(high):
        return square, high
    return _look(np.subtract(new, old, dtype=np.float64))


def _look(values: Numbers) -> tuple[float, float]:
    """Their squares' sum, and the largest magnitude; summed in float64 where float32 is too narrow."""
    high = max(float(values.max()), -float(values.min()))
    if high == 0:  # nothing moved, as in layers that are frozen
        return 0.0, 0.0
    if not TINY < high < HUGE:
        values = values.astype(np.float64)
    return float(np.einsum("c,c->", values, values)), high


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
    or has no others, has none. Within 1e-4 of the exact cosine, mostly within 1e-6.
    """
    moving = [index for index in updates if moves[index].norm > 0]
    if len(moving) < 2:
        return {}
    paths = [*(updates[index] for index in moving), model]
    norms = np.array([moves[index].norm for index in moving])
    narrow = all(TINY < norm < HUGE for norm in norms)
    dots, lengths = _compare_with_others(paths, norms, parameters, narrow=narrow)
    if narrow and lengths.min() < SHORT:
        dots, lengths = _compare_with_others(paths, norms, parameters, narrow=False)
    return {
        index: float(np.clip(dot / length, -1.0, 1.0))
        for index, dot, length in zip(moving, dots.tolist(), lengths.tolist(), strict=True)
        if length > 1e-6
    }


def _compare_with_others(
    paths: Sequence[Path], norms: Vector, parameters: Sequence[TensorSpec], *, narrow: bool
) -> tuple[Vector, Vector]:
    """With unit vectors v_k and their sum V: ``<v_k, V - v_k>`` and ``|V - v_k|``, each of shape (K,).

    ``paths`` are those of the updates, and the model's. ``narrow``: in float32 within a chunk.
    """
    along, own, whole = np.zeros(len(norms)), np.zeros(len(norms)), 0.0
    for moved in _read_displacements(paths, parameters, narrow=narrow):
        sums = np.einsum("k,kc->c", (1 / norms).astype(moved.dtype), moved)
        along += np.einsum("kc,c->k", moved, sums)
        own += np.einsum("kc,kc->k", moved, moved)
        whole += float(np.einsum("c,c->", sums, sums))
    along, own = along / norms, own / norms**2  # own: 1, but for the digits that a norm has
    return along - own, np.sqrt(np.maximum(whole - 2 * along + own, 0.0))


def _read_displacements(
    paths: Sequence[Path], parameters: Sequence[TensorSpec], *, narrow: bool
) -> Iterator[Vector]:
    """Those of the files from the last of ``paths``, in pieces, a row a file: (K - 1, M)."""
    longest = COSINES_CHUNK // len(paths) + 1
    if len(paths) > MOST_OPEN:
        for _, _, rows in read_chunks(paths, parameters, longest=longest, narrow=narrow):
            yield np.subtract(rows[:-1], rows[-1], out=rows[:-1])
        return
    names = [spec.name for spec in parameters]
    with ExitStack() as stack:
        files = [stack.enter_context(wire.opened(path)) for path in paths]
        for columns in wire.abreast(files, wire.MODEL, names):
            for first in range(0, len(columns[-1]), longest):
                pieces = [column[first : first + longest] for column in columns]
                kind = np.float32 if narrow and pieces[-1].dtype != np.float64 else np.float64
                rows = np.empty((len(pieces), len(pieces[-1])), kind)
                for row, piece in zip(rows, pieces, strict=True):
                    row[:] = piece
                yield np.subtract(rows[:-1], rows[-1], out=rows[:-1])
