"""Labelled examples where aggregation happens, and how their loss changes with the clients' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.aggregation.products import slopes_along

if TYPE_CHECKING:
    from shared.aggregation import UpdateFile
    from shared.algorithms.base import Tensors, Updates

__all__ = ["Mixture", "ProxyExamples"]


class ProxyExamples(Protocol):
    """Examples that belong to no client, with the run's model and loss."""

    @property
    def batches(self) -> int: ...

    def gradient(self, parameters: Tensors, batch: int) -> Tensors:
        """Of the batch's mean loss, by the trainable parameters, for these values of theirs."""
        ...


@dataclass(frozen=True)
class Mixture:
    """Proxy examples together with a round's updates (``shared.weightings.base.Proxy``)."""

    examples: ProxyExamples
    updates: Sequence[UpdateFile]
    stream: Updates

    @property
    def batches(self) -> int:
        return self.examples.batches

    def slopes(self, coefficients: Mapping[int, float], batch: int) -> dict[int, float]:
        gradient = self.examples.gradient(self.stream.weighted_sum(coefficients), batch)
        asked = [update for update in self.updates if update.info.index in coefficients]
        slopes = slopes_along(gradient, [update.path for update in asked])
        return {update.info.index: slope for update, slope in zip(asked, slopes, strict=True)}
