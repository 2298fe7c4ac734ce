"""Rounds as a weighting sees them, of vectors that are at hand: for rules, and for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shared.weightings import find_taken, weigh
from shared.weightings.base import Contribution, Vector, Weighed, Weighting, WeightingRound

Layers = dict[str, NDArray[np.float64]]  # of one vector: numbers by layer


def vectors(clients: int, seed: int = 0) -> tuple[Layers, list[Layers]]:
    """x, and the y_k near to it, in three layers."""
    random = np.random.default_rng(seed)
    shapes = {"first": 7, "second": 12, "third": 3}
    x = {name: random.normal(size=size) for name, size in shapes.items()}
    common = {name: random.normal(size=size) * 0.2 for name, size in shapes.items()}
    moved = [
        {name: x[name] + common[name] + random.normal(size=size) * 0.3 for name, size in shapes.items()}
        for _ in range(clients)
    ]
    return x, moved


def flat(layers: Layers) -> Vector:
    return np.concatenate(list(layers.values()))


def round_of(
    x: Layers, moved: Sequence[Layers], sizes: Sequence[int], indices: Sequence[int] = (), **fields: Any
) -> WeightingRound:
    """What a weighting is told of these vectors."""
    indices = indices or range(len(sizes))
    rows = {name: np.stack([*(y[name] - x[name] for y in moved), x[name]]) for name in x}
    return WeightingRound(
        taken=[Contribution(index, size) for index, size in zip(indices, sizes, strict=True)],
        layers={name: matrix @ matrix.T for name, matrix in rows.items()},
        parameters=len(flat(x)),
        **fields,
    )


class LinearProxy:
    """Two batches of a linear regression on mixed vectors; the slopes come from autograd."""

    batches = 2

    def __init__(self, local: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(1)
        self.local = local
        self.inputs = torch.randn(2, 16, local.shape[1], generator=generator, dtype=torch.float64)
        self.targets = torch.randn(2, 16, generator=generator, dtype=torch.float64)

    def loss(self, coefficients: torch.Tensor, batch: int) -> torch.Tensor:
        return (self.inputs[batch] @ (coefficients @ self.local) - self.targets[batch]).square().mean()

    def slopes(self, coefficients: Mapping[int, float], batch: int) -> dict[int, float]:
        c = torch.tensor(list(coefficients.values()), dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(self.loss(c, batch), c)
        return dict(zip(coefficients, found.tolist(), strict=True))


def weigh_any(
    weighting: Weighting, arrived: Sequence[Contribution], everyone: Sequence[Contribution], number: int = 1
) -> Weighed:
    """A round of made-up updates, losses and counts, whatever the weighting needs; the same at every call."""

    def completed(row: Contribution) -> Contribution:
        loss = 1.5 + 0.1 * row.index
        return replace(row, counts=(3.0, 1.0 + row.index), start_loss=loss, end_loss=loss - 0.5)

    rows = [completed(row) for row in arrived]
    taken = find_taken(weighting, rows)
    x, moved = vectors(len(taken), seed=number)
    local = torch.from_numpy(np.stack([flat(y) for y in moved])) if moved else torch.zeros(0, 1)
    sizes, indices = [row.examples for row in taken], [row.index for row in taken]
    known = round_of(x, moved, sizes, indices) if taken else WeightingRound([])
    round = WeightingRound(
        taken, everyone, number, 9, layers=known.layers, parameters=known.parameters, proxy=LinearProxy(local)
    )
    return weigh(weighting, rows, round)
