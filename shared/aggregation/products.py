"""Inner products of a round's updates, layer by layer: all that a weighting is told of them.

The files are read in chunks of a few megabytes, so memory does not grow with the model; sums run in float64
and in an order that depends on no number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared import wire
from shared.weightings.base import Vector, layer_of

if TYPE_CHECKING:
    from torch import Tensor

    from shared.schemas import TensorSpec

__all__ = ["CHUNK_NUMBERS", "inner_products", "slopes_along"]

CHUNK_NUMBERS = 1 << 21
"""Numbers of all vectors together that are in memory at once: 16 MiB as float64."""


def inner_products(
    model: Path, updates: Sequence[Path], parameters: Sequence[TensorSpec]
) -> dict[str, Vector]:
    """By layer, the inner products of the displacements y_k - x, and of x, which comes last; (K + 1, K + 1).

    ``model`` is the file of x, ``updates`` those of the y_k, in the order of the rows.
    """
    layers: dict[str, Vector] = {}
    for spec in parameters:
        found = layers.setdefault(layer_of(spec.name), np.zeros((len(updates) + 1, len(updates) + 1)))
        for rows in _chunks([*updates, model], spec):
            rows[:-1] -= rows[-1]
            for at, row in enumerate(rows):
                found[at, at:] += np.einsum("c,jc->j", row, rows[at:])
    return {name: np.triu(products) + np.triu(products, 1).T for name, products in layers.items()}


def slopes_along(gradient: Mapping[str, Tensor], updates: Sequence[Path]) -> list[float]:
    """The inner product of ``gradient``, by parameter, with each update's parameters."""
    slopes = []
    for path in updates:
        with wire.opened(path) as file:
            parts = [
                np.einsum("c,c->", _flat(slope), _flat(file.tensor(wire.MODEL, name)))
                for name, slope in gradient.items()
            ]
        slopes.append(float(np.sum(parts)))
    return slopes


def _chunks(paths: Sequence[Path], spec: TensorSpec) -> Iterator[Vector]:
    """The tensor of each file, flat, as rows; a chunk of its numbers at a time."""
    size = int(np.prod(spec.shape, dtype=np.int64))
    length = max(1, CHUNK_NUMBERS // len(paths))
    for first in range(0, size, length):
        rows = np.empty((len(paths), min(length, size - first)))
        for row, path in zip(rows, paths, strict=True):
            with wire.opened(path) as file:
                flat = file.tensor(wire.MODEL, spec.name).reshape(-1)
                row[:] = _flat(flat[first : first + length])
        yield rows


def _flat(tensor: Tensor) -> Vector:
    flat: Vector = tensor.detach().reshape(-1).double().numpy()
    return flat
