"""The 1,797 handwritten digits that come with scikit-learn: real images, nothing to download.

Alpaydin and Kaynak, *Optical Recognition of Handwritten Digits*, UCI, 1998 (its test part).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.data import Examples, FileList, Unlabelled
from shared.data.images import Picture, decode_images
from shared.problems import InvalidConfiguration
from shared.seeds import torch_generator
from shared.tasks.base import Split, Task

__all__ = ["TASK", "Digits"]

FILE = "datasets/data/digits.csv.gz"
TEST_SHARE = 0.2
MEAN, DEVIATION = 4.8842, 6.0168  # of all pixels, which go from 0 to 16


class Digits(Task):
    """Images of shape (1, 8, 8), values 0 to 16; split 80/20 within each class by the run's seed."""

    name = "digits"
    default_model = "mlp"
    classes = tuple("0123456789")
    input_shape = (1, 8, 8)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Some 1,440 or 360 images, in the order of the collection; ``source`` is not used."""
        examples = _collection()
        held_out = _held_out(examples.targets, seed)
        return examples.subset(torch.nonzero(held_out if split == "test" else ~held_out).flatten())

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Images of any format, bright ink on dark, in grey and resized to 8x8."""
        archive = FileList(files)
        images, kept = decode_images(archive, archive.names, Picture(1, (8, 8)))
        inputs = (images.float() * (16 / 255)).round().to(torch.uint8)
        return Unlabelled(tuple(archive.names[position] for position in kept), inputs, archive.left_out)

    def describe_inputs(self) -> dict[str, Any]:
        """Sixteen shades."""
        return {
            "kind": "images",
            "shape": list(self.input_shape),
            "colours": "grey, bright ink on dark",
            "resize": "bilinear, antialiased",
            "range": [0, 16],
            "scale": "value less mean, over deviation",
            "mean": [MEAN],
            "deviation": [DEVIATION],
        }

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standardised; never augmented."""
        return inputs.to(torch.float32, copy=True).sub_(MEAN).div_(DEVIATION)


TASK = Digits


@cache
def _collection() -> Examples:
    """Read from scikit-learn's file without importing scikit-learn, which takes a second in every process."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise InvalidConfiguration(
            "task digits: the images come with scikit-learn, which is not installed here.",
            hint="Install it: pip install scikit-learn.",
        )
    rows = np.loadtxt(Path(package.origin).parent / FILE, delimiter=",", dtype=np.uint8)
    images = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 8, 8)  # (1797, 1, 8, 8)
    return Examples(images, torch.from_numpy(rows[:, -1]).to(torch.int64))


def _held_out(targets: Tensor, seed: int) -> Tensor:
    """Mask of the test examples: the rounded share of each class, drawn by the seed."""
    generator = torch_generator(seed, "split")
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(10):
        members = torch.nonzero(targets == label).flatten()
        order = torch.randperm(len(members), generator=generator)
        mask[members[order[: round(TEST_SHARE * len(members))]]] = True
    return mask
