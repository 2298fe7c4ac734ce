"""Does a file hold exactly the tensors that are expected, and only finite numbers?

The one place that decides what of the uploaded bytes is believed. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.lazy import LazyModule
from shared.problems import (
    MissingTensor,
    NotFinite,
    NotSafetensors,
    OutOfBounds,
    TooLarge,
    Truncated,
    UnknownTensor,
    WrongDtype,
    WrongShape,
)
from shared.schemas import TensorSpec
from shared.wire.header import DTYPES, MAX_HEADER_BYTES, Entry, Header, Stretch, read_header, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
else:
    np = LazyModule("numpy")

__all__ = ["Layout", "validate", "widen"]

CHUNK_BYTES = 256 * 1024  # stays in the processor's cache, a multiple of every itemsize
WIDEST = 8  # bytes of a number

Layout = Mapping[str, TensorSpec]
"""Wire key to specification; the specification's name is the tensor's own, without group."""


def validate(
    path: Path, layout: Layout, max_bytes: int | None = None, max_entry: float | None = None
) -> None:
    """Accept ``path`` if it is a safetensors file of exactly the tensors of ``layout``, all finite.

    ``max_entry``: the largest magnitude of a floating value; None: any that is finite.

    Reads the file once, in pieces of 256 KiB; memory does not grow with its size.
    Raises the subclasses of UpdateInvalid, which name the tensor, what was expected and what was received.
    """
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        if max_bytes is not None and size > max_bytes:
            raise TooLarge(
                f"the file has {size} bytes, allowed are {max_bytes}",
                hint="Was another model trained than the run's?",
            )
        header = read_header(file, _header_limit(layout))
        _compare(header.entries, layout)
        _scan(file, header, max_entry)


def _header_limit(layout: Layout) -> int:
    """Longest header that these tensors can need: keys may be escaped, numbers have at most 19 digits."""
    tensors = sum(12 * len(name) + 22 * len(spec.shape) + 160 for name, spec in layout.items())
    return min(MAX_HEADER_BYTES, tensors + 64 * 1024)  # the rest is for __metadata__


def _compare(entries: Mapping[str, Entry], layout: Layout) -> None:
    for name in entries:
        if name not in layout:
            raise UnknownTensor(
                f"tensor {shown(name)} is not one of the {len(layout)} that the run expects",
                hint="Train the model that the run's task builds; upload what the algorithm declares.",
                tensor=shown(name),
            )
    for name, spec in layout.items():
        if name not in entries:
            raise MissingTensor(
                f"tensor {shown(name)} ({spec.dtype} {list(spec.shape)}) is missing",
                hint="Upload every trainable parameter, averaged buffer and declared group.",
                tensor=shown(name),
            )
        _compare_tensor(name, entries[name], spec)


def _compare_tensor(name: str, entry: Entry, spec: TensorSpec) -> None:
    if entry.dtype != spec.dtype:
        raise WrongDtype(
            f"tensor {shown(name)} has dtype {entry.dtype}, expected is {spec.dtype}",
            hint="Convert it before writing the file.",
            tensor=shown(name),
            expected=spec.dtype,
            received=entry.dtype,
        )
    if entry.shape != spec.shape:
        raise WrongShape(
            f"tensor {shown(name)} has shape {list(entry.shape)}, expected is {list(spec.shape)}",
            hint="Train the model that the run's task builds, with the run's number of classes.",
            tensor=shown(name),
            expected=list(spec.shape),
            received=list(entry.shape),
        )


def _scan(file: FileIO, header: Header, max_entry: float | None) -> None:
    """Look at every floating value and every boolean; ``file`` stands at the beginning of the data."""
    longest = max((stretch.stop - stretch.start for stretch in header.stretches), default=0)
    room = min(-(-longest // WIDEST) * WIDEST, CHUNK_BYTES)  # less is faster: its pages are new
    chunk = np.empty(room, np.uint8)
    for stretch in header.stretches:
        if DTYPES[stretch.dtype].exponent is not None:
            file.seek(header.data_start + stretch.start)
            if not _is_unsuspicious(file, stretch, chunk, max_entry):
                for name in stretch.names:  # to say where, or to find that it is within the bounds
                    file.seek(header.data_start + header.entries[name].start)
                    _scan_floats(file, name, header.entries[name], chunk, max_entry)
        elif stretch.dtype == "BOOL":
            for name in stretch.names:
                file.seek(header.data_start + header.entries[name].start)
                _scan_booleans(file, name, header.entries[name], chunk)


def _is_unsuspicious(file: FileIO, stretch: Stretch, chunk: Bytes, max_entry: float | None) -> bool:
    """Whether no value's exponent reaches that of ``max_entry``, or of infinity."""
    kind, _, exponent = _find_masks(stretch.dtype, max_entry)
    signed, bound, sign = np.dtype(f"<i{kind.itemsize}"), int(exponent), 1 << (8 * kind.itemsize - 1)
    with suppress(Truncated):  # within which tensor is found by looking at each
        for _, bits in _pieces(file, stretch.names[0], stretch, chunk, kind):
            # as integers, the sign first: the largest is the largest magnitude of one sign, with sign bit or
            # without. Not isfinite: numpy knows no bfloat16, and takes five times as long for float16
            if bits.view(signed).max() >= bound or bits.max() >= sign | bound:
                return False
        return True
    return False


def _scan_floats(file: FileIO, name: str, entry: Entry, chunk: Bytes, max_entry: float | None) -> None:
    kind, mask, bound = _find_masks(entry.dtype, max_entry)
    for position, bits in _pieces(file, name, entry, chunk, kind):
        masked = np.bitwise_and(bits, mask)
        if masked.max() == mask:
            position += int(masked.argmax())
            raise NotFinite(
                f"tensor {shown(name)} holds NaN or infinity at position {position} of its flattened values",
                hint="The training diverged: lower the learning rate or clip gradients.",
                tensor=shown(name),
                position=position,
            )
        if max_entry is not None and masked.max() >= bound:
            _check_entries(name, entry.dtype, bits, position, max_entry)


def _find_masks(dtype: str, max_entry: float | None) -> tuple[np.dtype[Any], Any, Any]:
    """The integers in which to look at the bits, the mask of the exponent, and that of ``max_entry``."""
    known = DTYPES[dtype]
    kind = np.dtype(f"<u{known.itemsize}")
    mask = kind.type(known.exponent or 0)
    return kind, mask, mask if max_entry is None else _bits(dtype, max_entry) & mask


def _bits(dtype: str, value: float) -> Any:
    """The bits of the value in this dtype, of the largest where it is above all: a bound for bit patterns."""
    if dtype == "BF16":
        return _bits("F32", value) >> np.uint32(16)
    size = DTYPES[dtype].itemsize
    kind = np.dtype(f"<f{size}")
    held = min(value, float(np.finfo(kind).max))
    return np.array(held, kind).view(f"<u{size}")[()]


def _check_entries(name: str, dtype: str, bits: Any, first: int, max_entry: float) -> None:
    """The exponents of ``bits`` reach that of ``max_entry``: look at the values themselves."""
    size = bits.dtype.itemsize
    values = widen(bits, dtype) if size == 2 else bits.view(f"<f{size}")
    magnitudes = np.abs(values.astype(np.float64))
    position = int(magnitudes.argmax())
    if magnitudes[position] > max_entry:
        raise OutOfBounds(
            f"tensor {shown(name)} holds {magnitudes[position]:.4g} at position {first + position} of its "
            f"flattened values, and the run takes no magnitude above {max_entry:g} (max_entry)",
            hint="The training diverged, or max_entry of the run is too small for its model.",
            tensor=shown(name),
            position=first + position,
        )


def widen(bits: NDArray[np.uint16], dtype: str) -> NDArray[np.float32]:
    """Numbers of 16 bits, F16 or BF16, as float32.

    >>> import numpy
    >>> widen(numpy.array([0x3FC0], numpy.uint16), "BF16").tolist()
    [1.5]
    """
    if dtype == "F16":
        return bits.view("<f2").astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _scan_booleans(file: FileIO, name: str, entry: Entry, chunk: Bytes) -> None:
    for _, values in _pieces(file, name, entry, chunk, np.dtype(np.uint8)):
        if values.max() > 1:
            raise NotSafetensors(
                f"tensor {shown(name)} is BOOL but holds bytes other than 0 and 1",
                hint="Write the file with shared.wire.write or safetensors.",
                tensor=shown(name),
            )


def _pieces(
    file: FileIO, name: str, part: Entry | Stretch, chunk: Bytes, kind: np.dtype[Any]
) -> Iterator[tuple[int, Any]]:
    """Fill ``chunk`` again and again; yields the position among the part's values, and the values."""
    length = part.stop - part.start
    for start in range(0, length, CHUNK_BYTES):
        piece = chunk[: min(CHUNK_BYTES, length - start)]
        if _fill(file, piece.data) < len(piece):  # somebody shortened the file after its header was read
            raise Truncated(f"the file ends within tensor {shown(name)}", hint="Send it again.")
        yield start // kind.itemsize, piece.view(kind)


def _fill(file: FileIO, view: memoryview) -> int:
    """``readinto`` until the view is full or the file ends; a single call may give less."""
    filled = 0
    while filled < len(view) and (count := file.readinto(view[filled:])):
        filled += count
    return filled
