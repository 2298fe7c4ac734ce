"""Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 in ten classes (Xiao, Rasul, Vollgraf, 2017)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from shared.data import Examples, find_file, opened, read_idx
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split
from shared.tasks.images import ImageTask

__all__ = ["TASK", "FashionMNIST"]

PREFIX = {"train": "train", "test": "t10k"}


class FashionMNIST(ImageTask):
    """Reads the published idx files, gzipped or not, at any depth of a folder, zip or tar."""

    name = "fashion-mnist"
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    input_shape = (1, 28, 28)
    mean = (0.5,)
    deviation = (0.5,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images in the order of the files."""
        prefix = PREFIX[split]
        with opened(
            source, f"Fashion-MNIST ({prefix}-images-idx3-ubyte and its labels)", self.on_broken
        ) as archive:
            found = [
                find_file(archive, [f"{prefix}-{kind}-ubyte", f"{prefix}-{kind}-ubyte.gz"])
                for kind in ("images-idx3", "labels-idx1")
            ]
            images, labels = (read_idx(archive.read(name), f"{name} in {archive.path}") for name in found)
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or not _are_classes(labels):
            raise InvalidConfiguration(
                f"data: {source} has images of shape {list(images.shape)} and labels of shape "
                f"{list(labels.shape)}, not N times 28x28 and N labels from 0 to 9, N at least 1."
            )
        return Examples(images.unsqueeze(1), labels.to(torch.int64))


TASK = FashionMNIST


def _are_classes(labels: Tensor) -> bool:
    return labels.numel() > 0 and int(labels.max()) <= 9
