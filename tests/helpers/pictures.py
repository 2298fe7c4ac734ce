"""A task of small random images, for tests that train a few steps of a convolutional network."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from shared.data import Examples
from shared.tasks.base import Split, Task


class Pictures(Task):
    """120 random images 3 x 16 x 16 of four classes; preparing them draws noise."""

    name = "pictures"
    default_model = "simple-cnn"
    classes = ("a", "b", "c", "d")
    input_shape = (3, 16, 16)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (120, *self.input_shape), generator=generator, dtype=torch.uint8)
        return Examples(images, torch.arange(120) % 4)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        images = inputs.float().sub_(127).div_(64)
        return images if generator is None else images + torch.randn(images.shape, generator=generator)
