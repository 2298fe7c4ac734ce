"""The updates of a round as one stream: read in index order, one file mapped at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from shared import wire
from shared.algorithms.base import UpdateInfo
from shared.schemas import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from shared.algorithms.base import Tensors

__all__ = ["Stream", "UpdateFile", "make_zeros"]


@dataclass(frozen=True)
class UpdateFile:
    """A validated update on disk."""

    info: UpdateInfo
    path: Path


class Stream:
    """The updates of a round (``shared.algorithms.base.Updates``)."""

    def __init__(
        self,
        updates: Sequence[UpdateFile],
        parameters: Sequence[TensorSpec],
        own: Mapping[str, Sequence[TensorSpec]] = MappingProxyType({}),
    ) -> None:
        """``own`` are the tensors of groups that are not shaped like the parameters."""
        self._updates = updates
        self.parameters = parameters
        self._own = own

    @property
    def infos(self) -> Sequence[UpdateInfo]:
        return [update.info for update in self._updates]

    def weighted_sum(self, coefficients: Mapping[int, float], group: str = wire.MODEL) -> Tensors:
        return self.sum_of(coefficients, self._own.get(group, self.parameters), group)

    def sum_of(
        self, coefficients: Mapping[int, float], specs: Sequence[TensorSpec], group: str = wire.MODEL
    ) -> Tensors:
        """A running sum: the accumulators and one mapped file are all that is in memory."""
        sums = {spec.name: make_zeros(spec) for spec in specs}
        for update in self._updates:
            coefficient = coefficients.get(update.info.index, 0.0)
            if coefficient and specs:
                with wire.opened(update.path) as file:
                    for name, total in sums.items():
                        total.add_(file.tensor(group, name), alpha=coefficient)
        return sums

    def shares(self, weights: Mapping[int, float]) -> dict[int, float] | None:
        """What each update counts for in the model, where that is not its weight."""
        return None


def make_zeros(spec: TensorSpec) -> Tensor:
    """An accumulator: float32, or float64 for tensors of that."""
    import torch

    return torch.zeros(spec.shape, dtype=torch.float64 if spec.dtype == "F64" else torch.float32)
