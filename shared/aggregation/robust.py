"""The round's updates under an aggregation rule: a stream whose sums are robust ones (``shared.rules``).

Rules of vectors read a group twice, once for its K x K inner products and once for the sum. Rules of
coordinates read all updates side by side, a slice of coordinates at a time: some eight slices of 16 MiB
are in memory, whatever the model's size and the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared import wire
from shared.aggregation.products import group_products, read_chunks
from shared.aggregation.streams import Stream, UpdateFile, make_zeros
from shared.problems import InvalidConfiguration
from shared.rules import CoordinateRule, VectorRule
from shared.weightings.base import Vector

if TYPE_CHECKING:
    from shared.algorithms.base import Tensors
    from shared.schemas import TensorSpec

__all__ = ["RobustStream"]


class RobustStream(Stream):
    """Every sum of coefficients c_k is ``C R(u; c / C)``, ``C = sum_k c_k``; each group has its own centre.

    Displacements are counted from ``model`` in the model's own group, from zero in all others.
    """

    def __init__(
        self,
        updates: Sequence[UpdateFile],
        parameters: Sequence[TensorSpec],
        rule: VectorRule | CoordinateRule,
        model: Path,
    ) -> None:
        super().__init__(updates, parameters)
        self._rule = rule
        self._model = model
        self._products: dict[tuple[str, tuple[str, ...], tuple[int, ...]], Vector] = {}

    def sum_of(
        self, coefficients: Mapping[int, float], specs: Sequence[TensorSpec], group: str = wire.MODEL
    ) -> Tensors:
        used = {u.info.index: c for u in self._updates if (c := coefficients.get(u.info.index, 0.0))}
        if not used or not specs:
            return super().sum_of(coefficients, specs, group)
        if min(used.values()) < 0:
            raise InvalidConfiguration(
                "the algorithm sums updates with coefficients below zero: only the rule mean takes those",
                hint="Use `aggregation: mean`, or another algorithm.",
            )
        total = math.fsum(used.values())
        weights = {index: c / total for index, c in used.items()}
        if isinstance(self._rule, CoordinateRule):
            return self._centre(self._rule, weights, total, specs, group)
        return self._shift(self._rule, weights, total, specs, group)

    def shares(self, weights: Mapping[int, float]) -> dict[int, float] | None:
        """By index, what each update counts for in the model; None for rules of coordinates."""
        if not isinstance(self._rule, VectorRule):
            return None
        return self._coefficients(self._rule, weights, self.parameters, wire.MODEL)

    # ------------------------------------------------------------ by vectors

    def _shift(
        self,
        rule: VectorRule,
        weights: Mapping[int, float],
        total: float,
        specs: Sequence[TensorSpec],
        group: str,
    ) -> Tensors:
        given = self._coefficients(rule, weights, specs, group)
        sums = super().sum_of({index: total * share for index, share in given.items()}, specs, group)
        rest = total * (1 - math.fsum(given.values()))
        if group == wire.MODEL and rest:
            with wire.opened(self._model) as x:
                for name, value in sums.items():
                    value.add_(x.tensor(wire.MODEL, name), alpha=rest)
        return sums

    def _coefficients(
        self, rule: VectorRule, weights: Mapping[int, float], specs: Sequence[TensorSpec], group: str
    ) -> dict[int, float]:
        products = self._products_of(tuple(weights), specs, group)
        found = rule.coefficients(np.array(list(weights.values())), products)
        return dict(zip(weights, found.tolist(), strict=True))

    def _products_of(self, indices: tuple[int, ...], specs: Sequence[TensorSpec], group: str) -> Vector:
        key = (group, tuple(spec.name for spec in specs), indices)
        if key not in self._products:
            paths = [update.path for update in self._updates if update.info.index in indices]
            model = self._model if group == wire.MODEL else None
            self._products[key] = group_products(paths, specs, group, model)
        return self._products[key]

    # ------------------------------------------------------------ by coordinates

    def _centre(
        self,
        rule: CoordinateRule,
        weights: Mapping[int, float],
        total: float,
        specs: Sequence[TensorSpec],
        group: str,
    ) -> Tensors:
        import torch

        paths = [update.path for update in self._updates if update.info.index in weights]
        given = np.array(list(weights.values()))
        centres = {spec.name: make_zeros(spec) for spec in specs}
        for spec, first, rows in read_chunks(paths, specs, group):
            flat = centres[spec.name].reshape(-1)
            centre = torch.from_numpy(total * rule.centre(rows, given))
            flat[first : first + rows.shape[1]] = centre.to(flat.dtype)
        return centres
