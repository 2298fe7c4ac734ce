"""Examples in memory, and readers for the layouts in which data sets come: folders, zips, idx files.

Nothing here unpickles: the formats read are images (Pillow), idx, and fixed-length binary records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Examples"]


@dataclass(frozen=True)
class Examples:
    """A data set, whole and resident: ``inputs`` (N, ...), images as uint8; ``targets`` (N,)."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: NDArray[np.int64] | Tensor) -> Examples:
        """A copy of the examples at ``indices``, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.targets.device)
        return Examples(self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen))

    def to(self, device: torch.device) -> Examples:
        """The same examples resident on ``device``."""
        return Examples(self.inputs.to(device), self.targets.to(device))
