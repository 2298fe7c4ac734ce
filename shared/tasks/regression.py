"""What regression tasks share: one output, squared error, and bins of the target for ``d_k`` only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from shared.tasks.base import Task

__all__ = ["Regression", "bin_names", "increasing"]


class Regression(Task):
    """A target is a number; ``edges`` are the lower ends of all bins but the first, increasing.

    The bins are the run's classes: the discrepancy counts them, the loss does not know them.
    """

    default_model = "mlp"
    edges: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """One number, whatever the bins."""
        return 1

    def learned(self, targets: Tensor) -> Tensor:
        """What the model's output is compared with; the target itself unless overridden."""
        return targets

    def predicted(self, outputs: Tensor) -> Tensor:
        """The inverse of :meth:`learned`: outputs (B,) as targets."""
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the outputs (B, 1) against what is learned of the targets (B,)."""
        return functional.mse_loss(outputs[:, 0], self.learned(targets))

    def predict(self, outputs: Tensor) -> Tensor:
        """A number each (B,), in the target's unit."""
        return self.predicted(outputs[:, 0])

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Nothing is right or wrong here."""
        return None

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The absolute error of each prediction, in the target's unit."""
        return {"mean absolute error": (self.predicted(outputs[:, 0]) - targets).abs()}

    def categories(self, targets: Tensor) -> Tensor:
        """The bin of each target."""
        edges = torch.tensor(self.edges, dtype=targets.dtype, device=targets.device)
        return torch.bucketize(targets, edges, right=True)


def bin_names(edges: Sequence[float], whole: bool) -> tuple[str, ...]:
    """Names of the bins between ``edges``; ``whole``: of counts, which start at 0.

    >>> bin_names([1, 11, 51], whole=True)
    ('0', '1-10', '11-50', '51 or more')
    >>> bin_names([0, 2.5], whole=False)
    ('below 0', '0 to below 2.5', '2.5 or more')
    """
    last = f"{edges[-1]:g} or more"
    if not whole:
        return (f"below {edges[0]:g}", *(f"{a:g} to below {b:g}" for a, b in pairwise(edges)), last)
    ranges = [(int(a), int(b) - 1) for a, b in pairwise((0, *edges))]
    return (*(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges), last)


def increasing(edges: tuple[float, ...]) -> tuple[float, ...]:
    """The edges, if each is larger than the one before it (ValueError otherwise)."""
    if any(a >= b for a, b in pairwise(edges)):
        raise ValueError("edges must increase from one to the next")
    return edges
