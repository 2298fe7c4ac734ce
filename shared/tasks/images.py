"""What image classification tasks share: normalisation and augmentation of whole batches, and folders.

A data set is resident as uint8; a batch is cropped and flipped by two copies of whole windows
and normalised by one fused multiplication, so that the loader is never what training waits for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shared.data import Archive, Examples
from shared.decoding import decode_images
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split, Task

__all__ = ["IMAGE_SUFFIXES", "ImageTask", "crop", "flip", "folder_images", "read_folder", "rotate"]

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
        """Normalised; before that the task's crop, flip and rotation when a generator is given."""
        if generator is not None and self.crop_padding:
            inputs = crop(inputs, self.crop_padding, generator)
        if generator is not None and self.flips:
            inputs = flip(inputs, generator)
        if generator is not None and self.rotation:
            inputs = rotate(inputs, self.rotation, generator)
        mean = torch.tensor(self.mean, device=inputs.device).view(-1, 1, 1)
        scale = 1 / (255 * torch.tensor(self.deviation, device=inputs.device).view(-1, 1, 1))
        return inputs.float().sub_(255 * mean).mul_(scale)


def crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """A window of the images' own size (B, C, H, W) at a random place of each image padded with black."""
    number, _, height, width = images.shape
    down, right = torch.randint(0, 2 * padding + 1, (2, number), generator=generator).to(images.device)
    padded = functional.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2P + 1, 2P + 1, H, W), no copy
    return windows[torch.arange(number, device=images.device), :, down, right]


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each of the images (B, C, H, W) mirrored left to right, or not, with equal chances."""
    mirrored = torch.nonzero(torch.rand(len(images), generator=generator) < 0.5).flatten().to(images.device)
    return images.index_copy(0, mirrored, images.index_select(0, mirrored).flip(3))


def rotate(images: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    """Each image turned about its centre by an angle within +-``degrees``, float32, black where nothing is.

    (B, C, H, W) with nearest pixels, so that no new colours arise.
    """
    draws = torch.rand(len(images), generator=generator).to(images.device)
    angles = (2 * draws - 1) * math.radians(degrees)
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    height, width = images.shape[2:]
    # rows of the map from output to input places, both from -1 to 1, hence the ratio of the sides
    rows = [cosine, -sine * (height / width), zero, sine * (width / height), cosine, zero]
    grid = functional.affine_grid(
        torch.stack(rows, dim=1).view(-1, 2, 3), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images.float(), grid, mode="nearest", align_corners=False)


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
        InvalidConfiguration: see :func:`folder_images` and :func:`shared.decoding.decode_images`.
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
