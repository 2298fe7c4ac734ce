"""Image files to one tensor, kept decoded where the site allows it.

Decoding CIFAR-10's 50,000 JPEGs takes some 7 s of a core, reading them back decoded 0.1 s.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.data import READ_FAULTS, Archive, describe_fault
from shared.files import replacing
from shared.left_out import LeftOut, Reason, printable
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

    Pixels = NDArray[np.uint8]

__all__ = [
    "FORMATS",
    "IMAGE_SUFFIXES",
    "Picture",
    "Survey",
    "Window",
    "decode_images",
    "is_image",
    "survey_images",
]

_VERSION = 3
"""Raised when the same files give another result than before: what was kept is then decoded anew."""

FORMATS: Mapping[str, tuple[str, ...]] = {
    "AVIF": (".avif", ".avifs"),
    "BMP": (".bmp",),
    "DDS": (".dds",),
    "DIB": (".dib",),
    "FITS": (".fit", ".fits"),
    "GIF": (".gif",),
    "ICNS": (".icns",),
    "ICO": (".ico",),
    "JPEG": (".jfif", ".jpe", ".jpeg", ".jpg"),
    "JPEG2000": (".j2c", ".j2k", ".jp2", ".jpc", ".jpf", ".jpx"),
    "MPO": (".mpo",),
    "PCX": (".pcx",),
    "PNG": (".apng", ".png"),
    "PPM": (".pbm", ".pfm", ".pgm", ".pnm", ".ppm"),
    "PSD": (".psd",),
    "QOI": (".qoi",),
    "SGI": (".bw", ".rgb", ".rgba", ".sgi"),
    "TGA": (".icb", ".tga", ".vda", ".vst"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "XBM": (".xbm",),
}
"""What is read, by Pillow's names, with the endings of file names.

Written out, so that a new Pillow adds no decoder by itself. Not in it: what starts another program (EPS),
and Pillow's names for formats that it only passes on (BUFR, GRIB, HDF5, WMF).
"""

IMAGE_SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)

Window = tuple[float, float]
"""The values (low, high) that become 0 and 255; what lies outside is cut off."""


@dataclass(frozen=True)
class Picture:
    """What every image becomes: ``channels`` is 1 or 3, ``size`` (height, width); None: all have one size.

    ``window`` holds for grey images of more than 8 bits. Without it the whole range of the file's depth
    becomes 0 to 255; 32 bits and floating point have no such range, and need it.
    """

    channels: int
    size: tuple[int, int] | None
    window: Window | None = None


def is_image(name: str) -> bool:
    """Whether a file's name ends as those of images do."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def decode_images(
    archive: Archive, names: Sequence[str], picture: Picture, cache: Path | None = None
) -> tuple[Tensor, list[int]]:
    """Images as one uint8 tensor (N, channels, height, width), and their positions in ``names``.

    Resized bilinear and antialiased, turned as their EXIF says, on white where they are transparent; of
    several frames the first. What cannot be read is left out: see ``archive.left_out``.
    ``cache`` is a folder of this machine where the result is kept until the images change; not if one could
    not be read, as a disk or a permission may be mended and the file's times stay.

    Raises:
        InvalidConfiguration: names the image that has another size than the first.
    """
    import PIL

    if cache is None:
        decoded = _decode_all(archive, names, picture)
    else:
        key = "\0".join([archive.fingerprint(), *names, f"{picture} {_VERSION} {PIL.__version__}"])
        place = cache / hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        kept = _read(place)
        decoded = kept or _decode_all(archive, names, picture)
        if kept is None and not decoded.left_out.has(Reason.UNREADABLE):
            _keep(place, decoded)
    archive.left_out.extend(decoded.left_out)
    return torch.from_numpy(decoded.pixels).permute(0, 3, 1, 2).contiguous(), decoded.positions


@dataclass(frozen=True)
class _Decoded:
    """Pixels (N, height, width, channels), where they stood among the names, and what is missing."""

    pixels: Pixels
    positions: list[int]
    left_out: LeftOut


class _Undecodable(Exception):
    """Why an image cannot be read, to be said after its name."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def _decode_all(archive: Archive, names: Sequence[str], picture: Picture) -> _Decoded:
    pixels: Pixels = np.empty((0, *(picture.size or (0, 0)), picture.channels), dtype=np.uint8)
    positions: list[int] = []
    left_out = LeftOut()
    for position, name in enumerate(names):
        try:
            found, frames = _decode(archive, name, picture)
        except _Undecodable as fault:
            left_out.add(fault.reason, name, str(fault))
            continue
        if not positions:
            pixels = np.empty((len(names), *found.shape), dtype=np.uint8)
        if found.shape != pixels.shape[1:]:
            raise InvalidConfiguration(
                f"data: {printable(name)} in {archive.path} has height and width {found.shape[:2]}, "
                f"{printable(names[positions[0]])} has {pixels.shape[1:3]}.",
                hint="Have them resized (size), or make them of one size.",
            )
        pixels[len(positions)] = found
        positions.append(position)
        if frames > 1:
            left_out.add(Reason.FURTHER_FRAMES, name, times=frames - 1)
    return _Decoded(pixels[: len(positions)], positions, left_out)


def _decode(archive: Archive, name: str, picture: Picture) -> tuple[Pixels, int]:
    """The first frame (height, width, channels), and the number of frames."""
    try:
        data = archive.read_bytes(name)
    except READ_FAULTS as error:
        raise _Undecodable(*describe_fault(error)) from error
    if not data:
        raise _Undecodable(Reason.EMPTY, "is empty (0 bytes)")
    converted, frames = _open(data, picture)
    if picture.size is not None and converted.size != picture.size[::-1]:
        from PIL.Image import Resampling

        converted = converted.resize(picture.size[::-1], Resampling.BILINEAR)
    return np.asarray(converted).reshape(converted.height, converted.width, picture.channels), frames


def _open(data: bytes, picture: Picture) -> tuple[Image, int]:
    """The first frame, upright, in 8 bits."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.init()
    try:
        with Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            image.load()
            _turn_upright(image, ImageOps.exif_transpose)
            return _in_8_bits(image, picture), getattr(image, "n_frames", 1)
    except UnidentifiedImageError as error:
        raise _Undecodable(Reason.BROKEN, f"is not an image{_what_it_is(data)}") from error
    except Image.DecompressionBombError as error:
        raise _Undecodable(Reason.BROKEN, f"is too large to be opened: {error}") from error
    except (_Undecodable, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise whatever damaged bytes lead them to
        why = f"is not an image all through, it is cut short or damaged: {error}"
        raise _Undecodable(Reason.BROKEN, why.rstrip(".")) from error


def _what_it_is(data: bytes) -> str:
    start = data[:200].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return ": it is a web page (HTML)"
    if start.startswith(b"version https://git-lfs"):
        return ": it is a pointer of Git LFS, whose file was not fetched"
    if data[128:132] == b"DICM":
        return ": it is DICOM, which is not read here; export it as PNG or TIFF of 16 bits"
    return f" of a kind that is read here (it starts {data[:8]!r})"


def _turn_upright(image: Image, transpose: Callable[..., object]) -> None:
    """Metadata that cannot be read say nothing about the image."""
    with suppress(Exception):
        transpose(image, in_place=True)


def _in_8_bits(image: Image, picture: Picture) -> Image:
    """RGB or grey."""
    mode = "RGB" if picture.channels == 3 else "L"
    if image.mode.startswith(("I", "F")):
        return _scaled(image, picture.window).convert(mode)
    if image.has_transparency_data:
        from PIL import Image as Images

        solid = image.convert("RGBA")
        white = Images.new("RGBA", solid.size, "white")
        return Images.alpha_composite(white, solid).convert(mode)
    if mode == "L" and image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image.convert(mode)


def _scaled(image: Image, window: Window | None) -> Image:
    """A grey image of more than 8 bits in 8."""
    from PIL import Image as Images

    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise _Undecodable(Reason.BROKEN, "has values that are not finite numbers")
    bits = _bits(image)
    if window is None:
        if bits is None:
            raise _Undecodable(
                Reason.NO_RANGE,
                f"has values from {values.min():g} to {values.max():g} and no range of its own; say which "
                "become black and white: task_options window: [low, high]",
            )
        window = (0, 2**bits - 1)
    low, high = window
    scaled = np.clip((values - low) * (255 / (high - low)), 0, 255).round()
    if _is_white_zero(image):
        scaled = 255 - scaled
    return Images.fromarray(scaled.astype(np.uint8))


def _bits(image: Image) -> int | None:
    """How deep a grey image is; None: signed, in 32 bits, or not whole."""
    if image.mode.startswith("I;16"):
        tags = getattr(image, "tag_v2", {})
        return int(tags.get(258, (16,))[0])
    return 16 if image.mode == "I" and image.format in ("PNG", "PPM") else None


def _is_white_zero(image: Image) -> bool:
    """TIFF's photometric interpretation 0, which Pillow passes over in 16 bits."""
    return image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(262) == 0


@dataclass
class Survey:
    """What images are before they are made alike: how many of each kind and of each (width, height).

    ``deepest`` is the range of the grey values of more than 8 bits; None: there are none.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    deepest: tuple[float, float] | None = None


def survey_images(archive: Archive, names: Sequence[str]) -> Survey:
    """Each image's header, and the values of those of more than 8 bits; broken ones are passed over."""
    from PIL import Image

    Image.init()
    survey = Survey()
    for name in names:
        with suppress(Exception), Image.open(io.BytesIO(archive.read_bytes(name))) as image:
            deep = image.mode.startswith(("I", "F"))
            survey.kinds[f"{image.format} {_MODES.get(image.mode, image.mode)}"] += 1
            survey.sizes[image.size] += 1
            if deep:
                values = np.asarray(image)
                known = survey.deepest or (float("inf"), float("-inf"))
                survey.deepest = min(known[0], float(values.min())), max(known[1], float(values.max()))
    return survey


_MODES = {
    "1": "black and white",
    "L": "grey, 8 bits",
    "LA": "grey with alpha",
    "P": "palette",
    "RGB": "colour",
    "RGBA": "colour with alpha",
    "I;16": "grey, 16 bits",
    "I;16B": "grey, 16 bits",
    "I": "grey, whole numbers",
    "F": "grey, floating",
}


# ---------------------------------------------------------------- kept decoded


def _read(place: Path) -> _Decoded | None:
    """What was kept; None where nothing was, or what is there cannot be read."""
    try:
        files = place.with_suffix(".json"), place.with_suffix(".npy")
        told = json.loads(files[0].read_bytes())
        pixels: Pixels = np.load(files[1], allow_pickle=False)
        for file in files:
            os.utime(file)  # whoever clears the folder sees what is read
        decoded = _Decoded(pixels, list(told["positions"]), LeftOut.unpacked(told["left_out"]))
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
    return decoded if len(decoded.positions) == len(pixels) else None


def _keep(place: Path, decoded: _Decoded) -> None:
    """Under temporary names first: several processes may do the same at the same time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    told = {"positions": decoded.positions, "left_out": decoded.left_out.packed()}
    with replacing(place.with_suffix(".json"), durable=False) as file:
        file.write(json.dumps(told).encode())
    with replacing(place.with_suffix(".npy"), durable=False) as file:
        np.save(file, decoded.pixels, allow_pickle=False)
