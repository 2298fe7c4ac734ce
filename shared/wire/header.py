"""The header of a safetensors file, read with suspicion.

A file is: 8 bytes, the header's length as little-endian integer; the header, a JSON object
``{name: {"dtype", "shape", "data_offsets": [start, stop]}, "__metadata__": {text: text}}``, padded with
spaces; the data. :func:`read_header` believes nothing that it has not checked, and allocates no more
than a small multiple of the header's length. Nothing here needs torch.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

from shared.problems import NotSafetensors, Truncated, WrongDtype

__all__ = [
    "DTYPES",
    "MAX_HEADER_BYTES",
    "METADATA",
    "Dtype",
    "Entry",
    "Header",
    "Stretch",
    "read_header",
    "shown",
]

MAX_HEADER_BYTES = 16 * 1024 * 1024
REMEMBERED_BYTES = 32 * 1024
"""Headers up to this length are remembered: all updates of a round have the same one."""
REMEMBERED = 256
METADATA = "__metadata__"
LENGTH_BYTES = 8
MAX_RANK = 64  # torch allows no more axes
MAX_DIGITS = 19  # no size or offset of a real file has more


@dataclass(frozen=True, slots=True)
class Dtype:
    """``torch`` is the attribute of torch; ``exponent`` the bits that are all set in NaN and infinity."""

    torch: str
    itemsize: int
    exponent: int | None = None


DTYPES = {
    "F64": Dtype("float64", 8, 0x7FF0_0000_0000_0000),
    "F32": Dtype("float32", 4, 0x7F80_0000),
    "F16": Dtype("float16", 2, 0x7C00),
    "BF16": Dtype("bfloat16", 2, 0x7F80),
    "I64": Dtype("int64", 8),
    "I32": Dtype("int32", 4),
    "I16": Dtype("int16", 2),
    "I8": Dtype("int8", 1),
    "U64": Dtype("uint64", 8),
    "U32": Dtype("uint32", 4),
    "U16": Dtype("uint16", 2),
    "U8": Dtype("uint8", 1),
    "BOOL": Dtype("bool", 1),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its bytes are ``[start, stop)``, counted from the beginning of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tensors of one dtype that follow one another; ``start`` and ``stop`` as of an :class:`Entry`."""

    dtype: str
    names: tuple[str, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """``entries`` in the order of their bytes; ``data_start`` counted from the beginning of the file.

    ``stretches`` are the same tensors, in the same order, neighbours of one dtype together. ``metadata`` is
    what the file says of itself, text by text: believe nothing of it.
    """

    entries: Mapping[str, Entry]
    data_start: int
    stretches: tuple[Stretch, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_header(file: BinaryIO, limit: int = MAX_HEADER_BYTES) -> Header:
    """Read and check the header; every byte of the file is then accounted for by exactly one tensor.

    ``limit`` bounds the header's length in bytes. Raises NotSafetensors, Truncated, WrongDtype.
    """
    size = os.fstat(file.fileno()).st_size
    text = _header_text(file, size, min(limit, MAX_HEADER_BYTES))
    read = _read_remembered if len(text) <= REMEMBERED_BYTES else _read
    return read(text, size - LENGTH_BYTES - len(text))


def _read(text: bytes, data_bytes: int) -> Header:
    items = _parse(text)
    metadata = _check_metadata(items.pop(METADATA, {}))
    entries = {name: _entry(name, item) for name, item in items.items()}
    ordered = dict(sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].stop, pair[0])))
    _check_cover(ordered, data_bytes)
    stretches = tuple(_join_neighbours(ordered))
    return Header(MappingProxyType(ordered), LENGTH_BYTES + len(text), stretches, MappingProxyType(metadata))


_read_remembered = functools.lru_cache(REMEMBERED)(_read)


def _join_neighbours(ordered: Mapping[str, Entry]) -> Iterator[Stretch]:
    """There are no holes between tensors, so a stretch ends where another dtype begins."""
    for dtype, group in itertools.groupby(ordered.items(), key=lambda pair: pair[1].dtype):
        found = list(group)
        yield Stretch(dtype, tuple(name for name, _ in found), found[0][1].start, found[-1][1].stop)


def shown(name: str) -> str:
    """A foreign name, fit for a message: ASCII, quoted, at most about 200 characters."""
    return ascii(name if len(name) <= 200 else name[:200] + "...")


def _header_text(file: BinaryIO, size: int, limit: int) -> bytes:
    start = file.read(LENGTH_BYTES + 1)
    if len(start) <= LENGTH_BYTES:
        raise Truncated(
            f"the file has {size} bytes, less than the shortest safetensors file",
            hint="Send the whole file.",
        )
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > limit or start[LENGTH_BYTES:] != b"{":
        raise _foreign(start, length, limit)
    if length > size - LENGTH_BYTES:
        raise Truncated(
            f"the header announces {length} bytes, the file has {size - LENGTH_BYTES} after the length",
            hint="The upload was cut off or the file is damaged: send it again.",
        )
    text = start[LENGTH_BYTES:] + file.read(length - 1) if length else b""
    if not text.rstrip(b" ").endswith(b"}"):
        _refuse("the header does not end with '}' and spaces")
    return text


SIGNATURES = (
    (b"PK\x03\x04", "a zip archive, which is what torch.save writes (a PyTorch pickle)"),
    (b"\x80", "a PyTorch pickle"),
    (b"<", "HTML or XML, perhaps a proxy's error page"),
    (b"{", "JSON without the leading length"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a numpy file"),
)


def _foreign(start: bytes, length: int, limit: int) -> NotSafetensors:
    """What the file seems to be, if its beginning cannot be a safetensors header."""
    hint = "Write it with safetensors (shared.wire.write); pickles are never read here."
    for signature, meaning in SIGNATURES:
        if start.startswith(signature):
            return NotSafetensors(f"this is {meaning}, not a safetensors file", hint=hint)
    if length > limit:
        return NotSafetensors(
            f"the header announces {length} bytes, more than the {limit} allowed", hint=hint
        )
    return NotSafetensors("the header does not begin with '{'", hint=hint)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        items = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_int=_integer,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        _refuse("the header is nested too deeply")
    except ValueError as error:  # of decoding, of JSON, of the hooks below
        _refuse(f"the header cannot be read: {str(error)[:300]}")
    assert isinstance(items, dict)  # it begins with '{'
    return items


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        name.encode("utf-8")  # a lone surrogate is no text
        if name in found:
            raise ValueError(f"the key {shown(name)} is there twice")
        found[name] = value
    return found


def _integer(text: str) -> int:
    if text.startswith("-") or len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:40]} is not a size or an offset")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is not an integer")


def _check_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(f"{METADATA} must map text to text")
    return metadata


def _entry(name: str, item: Any) -> Entry:
    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse("a tensor has exactly dtype, shape and data_offsets", name)
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WrongDtype(
            f"tensor {shown(name)} has the unknown dtype {shown(str(dtype))}",
            hint=f"Known are {', '.join(DTYPES)}.",
            tensor=shown(name),
        )
    if not _integers(shape) or len(shape) > MAX_RANK:
        _refuse(f"the shape must be a list of at most {MAX_RANK} integers", name)
    if not _integers(offsets) or len(offsets) != 2:
        _refuse("data_offsets must be two integers", name)
    start, stop = offsets
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if stop - start != needed:
        _refuse(f"shape {shape} of {dtype} takes {needed} bytes, data_offsets {offsets} are not that", name)
    return Entry(dtype, tuple(shape), start, stop)


def _integers(values: Any) -> bool:
    # type(), since True is an int to isinstance
    return isinstance(values, list) and all(type(value) is int for value in values)


def _check_cover(entries: dict[str, Entry], data_bytes: int) -> None:
    position = 0
    for name, entry in entries.items():
        if entry.start != position:
            fault = "overlaps the tensor before it" if entry.start < position else "leaves a hole before it"
            _refuse(
                f"the data at bytes {entry.start} to {entry.stop} {fault} (which ends at {position})", name
            )
        position = entry.stop
    if position > data_bytes:
        raise Truncated(
            f"the tensors take {position} bytes, the file has {data_bytes} after its header",
            hint="The upload was cut off or the file is damaged: send it again.",
        )
    if position < data_bytes:
        _refuse(f"{data_bytes - position} bytes follow the last tensor")


def _refuse(reason: str, tensor: str | None = None) -> NoReturn:
    where = "" if tensor is None else f"tensor {shown(tensor)}: "
    extra = {} if tensor is None else {"tensor": shown(tensor)}
    raise NotSafetensors(
        where + reason, hint="Write the file with shared.wire.write or safetensors.", **extra
    )
