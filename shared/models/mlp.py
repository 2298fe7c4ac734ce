"""A multi-layer perceptron with one hidden layer, for small inputs and tabular data."""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

__all__ = ["MLP"]


class MLP(nn.Module):
    """flatten - FC 128 - ReLU - FC classes (9,610 parameters for the 64 pixels of digits)."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], hidden: int = 128) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU())
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, ...) to logits (B, classes)."""
        return cast(Tensor, self.classifier(self.features(inputs)))
