"""A task and an algorithm that cost nothing but the model: for measuring the service around the training."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalRound
from shared.config import Frozen
from shared.data import Examples
from shared.tasks.base import Split, Task

__all__ = ["Noise", "Nudge"]

EXAMPLES = 20


class NoiseOptions(Frozen):
    """``small``: 62,006 float32 parameters (simple-cnn). ``large``: 11,220,132 (resnet18-gn), 45 MB."""

    size: Literal["small", "large"] = "small"


class Noise(Task):
    """Twenty random colour images, 32 x 32; two of each of ten classes."""

    name = "noise"
    Options = NoiseOptions
    default_model = "simple-cnn"
    input_shape = (3, 32, 32)

    def __init__(self, options: NoiseOptions) -> None:
        super().__init__(options)
        large = options.size == "large"
        self.classes = tuple(str(number) for number in range(100 if large else 10))
        self.default_model = "resnet18-gn" if large else "simple-cnn"

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        images = torch.randint(
            0,
            256,
            (EXAMPLES, *self.input_shape),
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.uint8,
        )
        return Examples(images, torch.arange(EXAMPLES) % 10)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return inputs.float().div_(255)


class Nudge(Algorithm[AlgorithmParameters]):
    """FedAvg without training that moves one tensor a little: else the model would stay the same file."""

    citation = "none"

    @torch.no_grad()
    def begin(self, local: LocalRound) -> None:
        next(iter(local.parameters.values())).add_(1e-3)
