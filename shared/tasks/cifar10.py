"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in ten classes (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.data import Archive, Examples, find_file, opened
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split
from shared.tasks.images import ImageTask, read_folder

__all__ = ["CIFAR10", "TASK"]

PIXELS = 3 * 32 * 32
FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}


class CIFAR10(ImageTask):
    """Reads the published *binary* version, or images as ``train/<class>/...``: a folder, tar or zip."""

    name = "cifar10"
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    input_shape = (3, 32, 32)
    mean = (0.4914, 0.4822, 0.4465)
    deviation = (0.2023, 0.1994, 0.2010)
    crop_padding = 4
    flips = True

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images in the order of the files, or sorted by class and name where they are single images."""
        wanted = "CIFAR-10 (data_batch_1.bin ..., or images as train/<class>/... and test/<class>/...)"
        with opened(source, wanted) as archive:
            ends = {name.rsplit("/", 1)[-1] for name in archive.names}
            if ends & {*FILES["train"], *FILES["test"]}:
                return _read_binary(archive, split)
            if "data_batch_1" in ends:
                raise InvalidConfiguration(
                    f"data: {archive.path} holds the Python version of CIFAR-10: pickle, never read.",
                    hint="Use the binary version (cifar-10-binary.tar.gz) from the same place.",
                )
            return read_folder(archive, split, self.classes, 3, (32, 32), self.cache)


TASK = CIFAR10


def _read_binary(archive: Archive, split: Split) -> Examples:
    """Records of one label byte and 3,072 pixels: red, green, blue planes, row by row."""
    records = [_records(archive, find_file(archive, [file])) for file in FILES[split]]
    table = torch.cat(records)  # (N, 1 + 3072)
    return Examples(table[:, 1:].reshape(-1, 3, 32, 32).contiguous(), table[:, 0].to(torch.int64))


def _records(archive: Archive, name: str) -> torch.Tensor:
    data = archive.read(name)
    if not data or len(data) % (1 + PIXELS):
        raise InvalidConfiguration(
            f"data: {name} in {archive.path} has {len(data)} bytes, not a multiple of {1 + PIXELS}: "
            "it is cut off, or not the binary version of CIFAR-10."
        )
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 1 + PIXELS)
    if int(records[:, 0].max()) > 9:
        raise InvalidConfiguration(f"data: {name} in {archive.path} has a label above 9: not CIFAR-10.")
    return records
