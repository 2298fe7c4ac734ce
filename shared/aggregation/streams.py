"""The updates of a round as one stream: read in index order, one file mapped at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

__all__ = ["RunningSum", "Stream", "UpdateFile", "make_zeros"]


@dataclass(frozen=True)
class UpdateFile:
    """A validated update on disk; ``digest`` is its SHA-256, if that is known."""

    info: UpdateInfo
    path: Path
    digest: str | None = None


class RunningSum:
    """``sum_k c_k u_k`` of the tensors ``specs`` of a group: the totals and one mapped file are in memory.

    ``terms`` are what it is the sum of, in order. A sum of the same terms in the same order has the same
    bits, whenever they were added. If :meth:`add` raises, the totals are nothing any more.
    """

    def __init__(self, specs: Sequence[TensorSpec], group: str = wire.MODEL) -> None:
        self.specs = tuple(specs)
        self.group = group
        self.totals = {spec.name: make_zeros(spec) for spec in specs}
        self.terms: list[tuple[str, float]] = []

    def add(self, update: UpdateFile, coefficient: float) -> None:
        with wire.opened(update.path) as file:
            for name, total in self.totals.items():
                total.add_(file.tensor(self.group, name), alpha=coefficient)
        self.terms.append(_term(update, coefficient))


def _term(update: UpdateFile, coefficient: float) -> tuple[str, float]:
    return update.digest or str(update.path), coefficient


class Stream:
    """The updates of a round (``shared.algorithms.base.Updates``)."""

    def __init__(
        self,
        updates: Sequence[UpdateFile],
        parameters: Sequence[TensorSpec],
        own: Mapping[str, Sequence[TensorSpec]] = MappingProxyType({}),
        begun: Iterable[RunningSum] = (),
    ) -> None:
        """``own`` are the tensors of groups that are not shaped like the parameters.

        ``begun`` are sums that may be the beginnings of those asked for: then they are gone on with.
        """
        self._updates = updates
        self.parameters = parameters
        self._own = own
        self._begun = list(begun)

    @property
    def infos(self) -> Sequence[UpdateInfo]:
        return [update.info for update in self._updates]

    def weighted_sum(self, coefficients: Mapping[int, float], group: str = wire.MODEL) -> Tensors:
        return self.sum_of(coefficients, self._own.get(group, self.parameters), group)

    def sum_of(
        self, coefficients: Mapping[int, float], specs: Sequence[TensorSpec], group: str = wire.MODEL
    ) -> Tensors:
        given = [(u, c) for u in self._updates if (c := coefficients.get(u.info.index, 0.0)) and specs]
        running = self._take_begun([_term(*pair) for pair in given], specs, group)
        for update, coefficient in given[len(running.terms) :]:
            running.add(update, coefficient)
        return running.totals

    def _take_begun(
        self, terms: Sequence[tuple[str, float]], specs: Sequence[TensorSpec], group: str
    ) -> RunningSum:
        """A sum of the first of these terms, of none if none was begun. It is given to nobody else."""
        for at, begun in enumerate(self._begun):
            is_beginning = begun.terms == list(terms[: len(begun.terms)])
            if is_beginning and (begun.group, begun.specs) == (group, tuple(specs)):
                return self._begun.pop(at)
        return RunningSum(specs, group)

    def shares(self, weights: Mapping[int, float]) -> dict[int, float] | None:
        """What each update counts for in the model, where that is not its weight."""
        return None


def make_zeros(spec: TensorSpec) -> Tensor:
    """An accumulator: float32, or float64 for tensors of that."""
    import torch

    return torch.zeros(spec.shape, dtype=torch.float64 if spec.dtype == "F64" else torch.float32)
