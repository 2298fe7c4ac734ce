"""What image classification tasks share: normalisation and augmentation of whole batches, and folders.

A data set is resident as uint8; a batch is cropped and flipped by two copies of whole windows
and normalised by one fused multiplication, so that the loader is never what training waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from shared.data import Archive, Examples
from shared.data.images import decode_images
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split, Task
from shared.tasks.transforms import crop, flip, rotate

__all__ = ["IMAGE_SUFFIXES", "ImageTask", "folder_images", "read_folder"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")

Listing = dict[str, list[str]]
"""Names of image files by class folder."""


class ImageTask(Task):
    """Images uint8 (B, channels, height, width), 0 to 255; ``mean`` and ``deviation`` are of pixels / 255."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    crop_padding: int = 0
    flips: bool = False
    rotation: float = 0.0  # degrees at most, either way
    default_model = "simple-cnn"

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Augmented when a generator is given; then normalised."""
        if generator is not None:
            inputs = self.augment(inputs, generator)
        shift, scale = (each.to(inputs.device).view(-1, 1, 1) for each in self.normalisation())
        return inputs.float().sub_(shift).mul_(scale)

    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from each channel of bytes, and what the rest is multiplied by."""
        return 255 * torch.tensor(self.mean), 1 / (255 * torch.tensor(self.deviation))

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The task's crop, flip and rotation; ``images`` are left as they are, values stay 0 to 255."""
        if self.crop_padding:
            images = crop(images, self.crop_padding, generator)
        if self.flips:
            images = flip(images, generator)
        if self.rotation:
            images = rotate(images, self.rotation, generator)
        return images


def read_folder(
    archive: Archive,
    split: Split,
    classes: Sequence[str],
    channels: int,
    size: tuple[int, int] | None,
    cache: Path | None = None,
) -> Examples:
    """The images of one split, sorted by class (in the order of ``classes``), then by name.

    Raises:
        InvalidConfiguration: see :func:`folder_images` and :func:`shared.data.images.decode_images`.
    """
    listing = folder_images(archive, split, classes)
    names = [name for label in classes for name in listing.get(label, [])]
    targets = [index for index, label in enumerate(classes) for _ in listing.get(label, [])]
    images = decode_images(archive, names, channels, size, cache)
    return Examples(images, torch.tensor(targets, dtype=torch.int64))


def folder_images(archive: Archive, split: Split, classes: Sequence[str]) -> Listing:
    """Image files by class: ``train/<class>/...`` and ``test/<class>/...``, or ``<class>/...`` for either.

    One folder around it all is allowed. A class without a folder has no images here, which is fine.

    Raises:
        InvalidConfiguration: no images, or a class folder that is not in ``classes``.
    """
    paths = [name.split("/") for name in archive.names if name.lower().endswith(IMAGE_SUFFIXES)]
    paths, prefix = _unwrapped(paths, {"train", "test", *classes})
    if any(path[0] in ("train", "test") for path in paths if len(path) > 2):
        paths, prefix = [path[1:] for path in paths if path[0] == split], f"{prefix}{split}/"
    listing: Listing = {}
    for path in paths:
        label = path[0] if len(path) > 1 else ""
        if label not in classes:
            raise InvalidConfiguration(
                f"data: {prefix}{'/'.join(path)} in {archive.path} is in no folder of the classes "
                f"{list(classes)}.",
                hint="Every image lies in a folder named like a class of the run's class contract.",
            )
        listing.setdefault(label, []).append(prefix + "/".join(path))
    if not listing:
        raise InvalidConfiguration(
            f"data: looked for images ({', '.join(IMAGE_SUFFIXES)}) as {split}/<class>/... or <class>/... "
            f"in {archive.path}, found none among {len(archive.names)} files."
        )
    return listing


def _unwrapped(paths: list[list[str]], known: set[str]) -> tuple[list[list[str]], str]:
    """Paths without the one folder around them all, if there is one, and that folder's name."""
    tops = {path[0] for path in paths}
    if len(tops) == 1 and not tops & known and all(len(path) > 2 for path in paths):
        return [path[1:] for path in paths], f"{tops.pop()}/"
    return paths, ""
