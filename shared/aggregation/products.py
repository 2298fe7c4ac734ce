"""Inner products of a round's updates, layer by layer: all that a weighting is told of them.

The files are read in chunks of a few megabytes, so memory does not grow with the model; sums run in float64
and in an order that depends on no number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared import wire
from shared.weightings.base import Vector, layer_of

if TYPE_CHECKING:
    from torch import Tensor

    from shared.schemas import TensorSpec

__all__ = ["CHUNK_NUMBERS", "group_products", "inner_products", "read_chunks", "slopes_along"]

CHUNK_NUMBERS = 1 << 21
"""Numbers of all vectors together that are in memory at once: 16 MiB as float64."""

MOST_OPEN = 128
"""Each mapped file holds a descriptor."""


def inner_products(
    model: Path, updates: Sequence[Path], parameters: Sequence[TensorSpec]
) -> dict[str, Vector]:
    """By layer, the inner products of the displacements y_k - x, and of x, which comes last; (K + 1, K + 1).

    ``model`` is the file of x, ``updates`` those of the y_k, in the order of the rows.
    """
    layers: dict[str, Vector] = {}
    size = len(updates) + 1
    for spec, _, rows in read_chunks([*updates, model], parameters):
        found = layers.setdefault(layer_of(spec.name), np.zeros((size, size)))
        rows[:-1] -= rows[-1]
        _add_products(found, rows)
    return {name: _mirrored(products) for name, products in layers.items()}


def group_products(
    updates: Sequence[Path], specs: Sequence[TensorSpec], group: str, model: Path | None
) -> Vector:
    """The inner products of a group's tensors over all ``specs``, less those of ``model`` if any; (K, K)."""
    found = np.zeros((len(updates), len(updates)))
    for _, _, rows in read_chunks([*updates, *([] if model is None else [model])], specs, group):
        if model is not None:
            rows[:-1] -= rows[-1]
        _add_products(found, rows[: len(updates)])
    return _mirrored(found)


def _add_products(found: Vector, rows: Vector) -> None:
    """To the upper triangle; in an order that depends on no number of threads."""
    for at, row in enumerate(rows):
        found[at, at:] += np.einsum("c,jc->j", row, rows[at:])


def _mirrored(products: Vector) -> Vector:
    whole: Vector = np.triu(products) + np.triu(products, 1).T
    return whole


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


def read_chunks(
    paths: Sequence[Path],
    specs: Iterable[TensorSpec],
    group: str = wire.MODEL,
    longest: int | None = None,
    *,
    narrow: bool = False,
) -> Iterator[tuple[TensorSpec, int, Vector]]:
    """The tensors of each file, flat, as rows: which tensor, the first place, and a chunk of its numbers.

    The rows are (K, M) in float64, the caller's to change; with ``narrow`` in float32, but for tensors of
    float64. Up to ``MOST_OPEN`` files stay mapped from the first tensor to the last, and M is at most
    ``longest``; more are mapped anew for each chunk.
    """
    length = max(1, CHUNK_NUMBERS // len(paths))
    with ExitStack() as stack:
        few = len(paths) <= MOST_OPEN
        if few and longest is not None:
            length = min(length, longest)
        files = [stack.enter_context(wire.opened(path)) for path in paths] if few else []
        for spec in specs:
            size = math.prod(spec.shape)
            mapped = [file.numbers(group, spec.name) for file in files]
            kind = np.float32 if narrow and spec.dtype != "F64" else np.float64
            for first in range(0, size, length):
                rows = np.empty((len(paths), min(length, size - first)), kind)
                for at, row in enumerate(rows):
                    if files:
                        row[:] = mapped[at][first : first + len(row)]
                    else:
                        with wire.opened(paths[at]) as file:
                            row[:] = file.numbers(group, spec.name)[first : first + len(row)]
                yield spec, first, rows
            for file in files:
                file.drop_pages()


def _flat(tensor: Tensor) -> Vector:
    flat: Vector = tensor.detach().reshape(-1).double().numpy()
    return flat
