"""Where every random number comes from: (run seed, purpose, numbers), hashed.

>>> derive(0, "batches", 3, 1) == derive(0, "batches", 3, 1)
True
>>> derive(0, "batches", 3, 1) == derive(0, "batches", 1, 3)
False
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Purpose = Literal[
    "initial-model",
    "participants",
    "batches",
    "augmentation",
    "dropout",
    "partition",
    "split",
    "steps",
    "controls",
    "validation",
    "proxy",
    "distillation",
    "scatter",
    "calibration",
]

__all__ = ["Purpose", "derive", "torch_generator"]


def derive(seed: int, purpose: Purpose, *numbers: int) -> int:
    """A 63-bit seed that depends on all arguments and on nothing else."""
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, purpose: Purpose, *numbers: int) -> torch.Generator:
    """A CPU generator seeded by :func:`derive` (draws on the CPU are the same on every device)."""
    import torch

    return torch.Generator().manual_seed(derive(seed, purpose, *numbers))
