"""A multi-layer perceptron with one hidden layer, for small inputs and tabular data."""

from __future__ import annotations

import math

from torch import nn

from shared.models.base import Model

__all__ = ["MLP", "MODEL"]


class MLP(Model):
    """flatten - FC 128 - ReLU - FC classes (9,610 parameters for the 64 pixels of digits)."""

    takes = "numbers"

    def __init__(self, classes: int, input_shape: tuple[int, ...], hidden: int = 128) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU())
        self.classifier = nn.Linear(hidden, classes)


MODEL = MLP
