"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in ten classes (Krizhevsky, 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from shared.data import Archive, Examples, find_file, opened
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split
from shared.tasks.images import ImageTask

__all__ = ["CIFAR10", "TASK", "read_binary", "refuse_pickle"]

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
        with opened(source, wanted, self.on_broken) as archive:
            ends = {name.rsplit("/", 1)[-1] for name in archive.names}
            if ends & {*FILES["train"], *FILES["test"]}:
                return read_binary(archive, FILES[split], label_bytes=1, classes=10)
            if "data_batch_1" in ends:
                refuse_pickle(archive, "cifar-10-binary.tar.gz")
            return self.read_folder(archive, split, 3, (32, 32))


TASK = CIFAR10


def read_binary(archive: Archive, files: Sequence[str], label_bytes: int, classes: int) -> Examples:
    """Records of label bytes, of which the last counts, and 3,072 pixels: red, green, blue planes.

    Raises:
        InvalidConfiguration: a file is missing, is no multiple of a record, or has a label out of range.
    """
    records = [_records(archive, find_file(archive, [file]), label_bytes, classes) for file in files]
    table = torch.cat(records)  # (N, label_bytes + 3072)
    images = table[:, label_bytes:].reshape(-1, 3, 32, 32).contiguous()
    return Examples(images, table[:, label_bytes - 1].to(torch.int64))


def refuse_pickle(archive: Archive, instead: str) -> NoReturn:
    """Say which file to take in place of the one whose reading could run anybody's code."""
    raise InvalidConfiguration(
        f"data: {archive.path} holds the Python version of the data: pickle, never read.",
        hint=f"Use the binary version ({instead}) from the same place.",
    )


def _records(archive: Archive, name: str, label_bytes: int, classes: int) -> torch.Tensor:
    data, width = archive.read(name), label_bytes + PIXELS
    if not data or len(data) % width:
        raise InvalidConfiguration(
            f"data: {name} in {archive.path} has {len(data)} bytes, not a multiple of {width}: "
            "it is cut off, or not the binary version."
        )
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, width)
    if int(records[:, label_bytes - 1].max()) >= classes:
        raise InvalidConfiguration(
            f"data: {name} in {archive.path} has a label above {classes - 1}: it is another data set."
        )
    return records
