"""CINIC-10: 90,000 + 90,000 + 90,000 colour images of 32x32 in CIFAR-10's classes (Darlow et al., 2018)."""

from __future__ import annotations

from pathlib import Path

from shared.data import Examples, opened
from shared.tasks.base import Split
from shared.tasks.cifar10 import CIFAR10

__all__ = ["CINIC10", "TASK"]


class CINIC10(CIFAR10):
    """Reads the published layout, ``train/<class>/...`` and ``test/<class>/...`` (``valid/`` is not used)."""

    name = "cinic10"
    mean = (0.478895, 0.472278, 0.430474)
    deviation = (0.242058, 0.238280, 0.258748)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images sorted by class and name."""
        with opened(source, f"CINIC-10 (images as {split}/<class>/...)", self.on_broken) as archive:
            return self.read_folder(archive, split, 3, (32, 32))


TASK = CINIC10
