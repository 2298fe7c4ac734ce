"""Image files to one tensor, kept decoded where the site allows it.

Decoding CIFAR-10's 50,000 JPEGs takes some 7 s of a core, reading them back decoded 0.1 s.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.data import Archive
from shared.files import replacing
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Pixels = NDArray[np.uint8]

__all__ = ["decode_images"]

_VERSION = 1
"""Raised when the same files give other pixels than before: what was kept is then decoded anew."""


def decode_images(
    archive: Archive,
    names: Sequence[str],
    channels: int,
    size: tuple[int, int] | None,
    cache: Path | None = None,
) -> Tensor:
    """JPEG or PNG images as one uint8 tensor (N, channels, height, width); ``channels`` is 1 or 3.

    ``size`` is (height, width) to resize to, bilinear and antialiased; None: all must have one size.
    ``cache`` is a folder of this machine where the result is kept until the images change.

    Raises:
        InvalidConfiguration: names the file that is no image, or has another size than the first.
    """
    import PIL

    if cache is None:
        return _as_tensor(_decode_all(archive, names, channels, size))
    key = "\0".join([archive.fingerprint(), *names, f"{channels} {size} {_VERSION} {PIL.__version__}"])
    kept = cache / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"
    images = _read(kept)
    if images is None:
        images = _decode_all(archive, names, channels, size)
        _keep(kept, images)
    return _as_tensor(images)


def _as_tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _decode_all(
    archive: Archive, names: Sequence[str], channels: int, size: tuple[int, int] | None
) -> Pixels:
    """(N, height, width, channels)"""
    images: Pixels = np.empty((0, *(size or (0, 0)), channels), dtype=np.uint8)
    for position, name in enumerate(names):
        pixels = _decode(archive, name, channels, size)
        if position == 0:
            images = np.empty((len(names), *pixels.shape), dtype=np.uint8)
        if pixels.shape != images.shape[1:]:
            raise InvalidConfiguration(
                f"data: {name} in {archive.path} has height and width {pixels.shape[:2]}, "
                f"{names[0]} has {images.shape[1:3]}.",
                hint="Have them resized (size), or make them of one size.",
            )
        images[position] = pixels
    return images


def _decode(archive: Archive, name: str, channels: int, size: tuple[int, int] | None) -> Pixels:
    """(height, width, channels)"""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(archive.read(name)), formats=("JPEG", "PNG")) as image:
            converted = image.convert("RGB" if channels == 3 else "L")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidConfiguration(f"data: {name} in {archive.path} is not an image: {error}.") from error
    if size is not None and converted.size != size[::-1]:
        converted = converted.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(converted).reshape(converted.height, converted.width, channels)


def _read(kept: Path) -> Pixels | None:
    """What was kept; None where nothing was, or what is there cannot be read."""
    try:
        images: Pixels = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return images


def _keep(kept: Path, images: Pixels) -> None:
    """Several processes may do so at the same time."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with replacing(kept, durable=False) as file:
        np.save(file, images, allow_pickle=False)
