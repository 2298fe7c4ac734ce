"""What image classification tasks share: normalisation and augmentation of whole batches, and folders.

A data set is resident as uint8; a batch is cropped and flipped by two copies of whole windows
and normalised by one fused multiplication, so that the loader is never what training waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.data import Archive, Examples, FileList, Unlabelled
from shared.data.images import FORMATS, Picture, Window, decode_images, is_image
from shared.left_out import LeftOut, Reason, printable
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split, Task
from shared.tasks.transforms import crop, flip, rotate

__all__ = ["ImageTask", "folder_images", "other_folders"]

Listing = dict[str, list[str]]
"""Names of image files by class folder."""


class ImageTask(Task):
    """Images uint8 (B, channels, height, width), 0 to 255; ``mean`` and ``deviation`` are of pixels / 255."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop_padding: int = 0
    flips: bool = False
    rotation: float = 0.0  # degrees at most, either way
    window: Window | None = None  # of grey images deeper than 8 bits
    default_model = "simple-cnn"

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Augmented when a generator is given; then normalised."""
        if generator is not None:
            inputs = self.augment(inputs, generator)
        shift, scale = (each.to(inputs.device).view(-1, 1, 1) for each in self.normalisation())
        return inputs.to(torch.float32, copy=True).sub_(shift).mul_(scale)

    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from each channel of bytes, and what the rest is multiplied by."""
        return 255 * torch.tensor(self.mean), 1 / (255 * torch.tensor(self.deviation))

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Images of any format that is read here, resized to the task's own size."""
        channels, height, width = self.input_shape
        archive = FileList(files)
        images, kept = decode_images(archive, archive.names, Picture(channels, (height, width), self.window))
        return Unlabelled(tuple(archive.names[position] for position in kept), images, archive.left_out)

    def describe_inputs(self) -> dict[str, Any]:
        """A picture's way to the model."""
        channels, height, width = self.input_shape
        return {
            "kind": "images",
            "shape": [channels, height, width],
            "colours": "RGB" if channels == 3 else "grey",
            "resize": "bilinear, antialiased, to height and width, whatever the proportions",
            "orientation": "upright, as EXIF says",
            "transparency": "laid on white",
            "window": None if self.window is None else list(self.window),
            "range": [0, 255],
            "scale": "pixel / 255, less mean, over deviation, by channel",
            "mean": list(self.mean),
            "deviation": list(self.deviation),
        }

    def read_images(
        self,
        archive: Archive,
        listed: Sequence[tuple[str, int]],
        channels: int,
        size: tuple[int, int] | None,
        keys: Sequence[int] | None = None,
    ) -> Examples:
        """The images of (name, label) and their keys, less those that cannot be read (``left_out``)."""
        picture = Picture(channels, size, self.window)
        images, kept = decode_images(archive, [name for name, _ in listed], picture, self.cache)
        targets = torch.tensor([listed[position][1] for position in kept], dtype=torch.int64)
        chosen = (
            None if keys is None else torch.tensor([keys[position] for position in kept], dtype=torch.int64)
        )
        return Examples(images, targets, chosen, archive.left_out)

    def read_folder(
        self, archive: Archive, split: Split, channels: int, size: tuple[int, int] | None
    ) -> Examples:
        """The images of one split, sorted by class (in the order of the contract), then by name.

        Raises:
            InvalidConfiguration: see :func:`folder_images` and :func:`shared.data.images.decode_images`.
        """
        listing = folder_images(archive, split, self)
        listed = [
            (name, index) for index, label in enumerate(self.classes) for name in listing.get(label, ())
        ]
        return self.read_images(archive, listed, channels, size)

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The task's crop, flip and rotation; ``images`` are left as they are, values stay 0 to 255."""
        if self.crop_padding:
            images = crop(images, self.crop_padding, generator)
        if self.flips:
            images = flip(images, generator)
        if self.rotation:
            images = rotate(images, self.rotation, generator)
        return images


def folder_images(archive: Archive, split: Split, task: Task) -> Listing:
    """Image files by class: ``train/<class>/...`` and ``test/<class>/...``, or ``<class>/...`` for either.

    One folder around it all is allowed. A class without a folder has no images here, which is fine.

    Raises:
        InvalidConfiguration: no images, or a class folder that is not in the task's classes.
    """
    paths, prefix = _paths(archive, split, task, archive.left_out)
    listing: Listing = {}
    for path in paths:
        folder = path[0] if len(path) > 1 else ""
        label = task.class_of(folder)
        if label is None:
            raise InvalidConfiguration(
                f"data: {printable(prefix + '/'.join(path))} in {archive.path} is in no folder of the "
                f"classes {list(task.classes)}.",
                hint="Every image lies in a folder named like a class of the run's class contract. "
                + task.ask_class(folder),
            )
        listing.setdefault(label, []).append(prefix + "/".join(path))
    if not listing:
        raise InvalidConfiguration(
            f"data: looked for images ({', '.join(FORMATS)}) as {split}/<class>/... or <class>/... "
            f"in {archive.path}, found none among {len(archive.names)} files.",
            absent=True,
        )
    return listing


def other_folders(archive: Archive, split: Split, task: Task) -> dict[str, int]:
    """Folders of the split that are no class of the task, with the number of images in each."""
    paths, _ = _paths(archive, split, task, LeftOut())
    folders = Counter(path[0] for path in paths if len(path) > 1)
    return {folder: number for folder, number in folders.items() if task.class_of(folder) is None}


def _paths(archive: Archive, split: Split, task: Task, left_out: LeftOut) -> tuple[list[list[str]], str]:
    """The parts of each image's name from its class on, and what stands before them all."""
    paths = [name.split("/") for name in archive.names if is_image(name)]
    paths, prefix = _unwrapped(paths, {"train", "test", *task.classes, *task.labels})
    other = f"{prefix}{'test' if split == 'train' else 'train'}/"
    if any(path[0] in ("train", "test") for path in paths if len(path) > 2):
        for path in paths:
            if path[0] not in ("train", "test"):
                left_out.add(Reason.OTHER_FOLDER, prefix + "/".join(path))
        paths, prefix = [path[1:] for path in paths if path[0] == split], f"{prefix}{split}/"
    for name in archive.names:
        if not is_image(name) and not name.startswith(other):
            left_out.add(Reason.NOT_AN_IMAGE, name)
    return paths, prefix


def _unwrapped(paths: list[list[str]], known: set[str]) -> tuple[list[list[str]], str]:
    """Paths without the one folder around them all, if there is one, and that folder's name."""
    tops = {path[0] for path in paths}
    if len(tops) == 1 and not tops & known and all(len(path) > 2 for path in paths):
        return [path[1:] for path in paths], f"{tops.pop()}/"
    return paths, ""
