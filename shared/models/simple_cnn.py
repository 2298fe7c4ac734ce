"""The simple CNN of FedDisco's experiments (Ye et al., ICML 2023, appendix; reference 5)."""

from __future__ import annotations

from torch import nn

from shared.models.base import Model
from shared.models.shapes import require_images

__all__ = ["MODEL", "SimpleCNN"]


class SimpleCNN(Model):
    """Two 5x5 convolutions (6, 16 channels) with max-pooling, then FC 120, FC 84, FC classes.

    62,006 parameters for (3, 32, 32) and 10 classes, 44,426 for (1, 28, 28). The paper lists one
    pooling layer; its code has two, and only two give its flattened size of 400.
    """

    takes = "images"

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        require_images("simple-cnn", input_shape, smallest=16)
        channels, height, width = input_shape
        flat = 16 * _after_both(height) * _after_both(width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(84, classes)


def _after_both(side: int) -> int:
    """Pixels that are left of ``side`` after both convolutions and poolings (32 -> 5, 28 -> 4)."""
    return ((side - 4) // 2 - 4) // 2


MODEL = SimpleCNN
