"""ResNet-18 with group normalisation, for small images (reference 5).

He et al., CVPR 2016, with a 3x3 stem of stride 1, no max-pooling, and GroupNorm of two groups
(Wu and He, ECCV 2018) in place of BatchNorm: no running statistics, so nothing to average.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from shared.models.base import Model
from shared.models.shapes import require_images

__all__ = ["MODEL", "ResNet18GN"]

GROUPS = 2


def _conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.GroupNorm(GROUPS, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


class ResNet18GN(Model):
    """11,172,423 parameters for 3 channels and 7 classes, 11,220,132 for 100 classes."""

    takes = "images"

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        require_images("resnet18-gn", input_shape, smallest=8)
        blocks: list[nn.Module] = []
        width = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
            width = outputs
        stem = (_conv(input_shape[0], 64, 3, 1), nn.GroupNorm(GROUPS, 64), nn.ReLU())
        self.features = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


MODEL = ResNet18GN
