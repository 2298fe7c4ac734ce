"""Tensors in files: which ones under which keys, writing them, not believing them, reading them.

Group ``"model"`` uses a tensor's plain name as key, any other group ``group/name``. Only this module
knows that; everybody else looks up through a layout or through :class:`Opened`.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from shared.files import replacing
from shared.problems import InvalidConfiguration, MissingTensor
from shared.schemas import TensorKind, TensorSpec
from shared.wire.header import DTYPES, METADATA, Entry, Header, read_header, shown
from shared.wire.validation import Layout, validate, widen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Numbers = NDArray[np.float32] | NDArray[np.float64]

__all__ = [
    "MODEL",
    "Layout",
    "Opened",
    "Widened",
    "Written",
    "abreast",
    "group_of",
    "groups_layout",
    "key",
    "largest_bytes",
    "model_layout",
    "opened",
    "read_group",
    "update_layout",
    "validate",
    "write",
]

MODEL = "model"
_HEADER_ALLOWANCE = 2**20
_HEADER_PER_TENSOR = 1024


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file; ``digest`` is the SHA-256 of its bytes, hexadecimal."""

    path: Path
    digest: str
    bytes: int


# ---------------------------------------------------------------- layouts


def key(group: str, name: str) -> str:
    """The key of a tensor in a file.

    >>> key("model", "fc.weight"), key("control", "fc.weight")
    ('fc.weight', 'control/fc.weight')
    """
    return name if group == MODEL else f"{group}/{name}"


def group_of(name: str, spec: TensorSpec) -> str:
    """The group of the key ``name`` of a layout, whose tensor is ``spec``.

    >>> group_of("control/fc.weight", TensorSpec(name="fc.weight", shape=(2, 2), dtype="F32"))
    'control'
    """
    return MODEL if name == spec.name else name.removesuffix(f"/{spec.name}")


def model_layout(manifest: Iterable[TensorSpec]) -> Layout:
    """A model file: every tensor of the manifest."""
    return _layout((MODEL, spec) for spec in manifest)


def update_layout(
    manifest: Iterable[TensorSpec],
    uploads: Sequence[str],
    buffers: Literal["average", "keep-local"],
    own: Mapping[str, Sequence[TensorSpec]] = MappingProxyType({}),
) -> Layout:
    """An update file: trainable parameters, averaged buffers, and the algorithm's upload groups.

    ``own`` are the tensors of groups that are not shaped like the parameters, here and below.
    """
    manifest = tuple(manifest)
    sent = {TensorKind.PARAMETER} | ({TensorKind.BUFFER} if buffers == "average" else set())
    model = [(MODEL, spec) for spec in manifest if spec.kind in sent]
    return _layout([*model, *_group_specs(manifest, uploads, own)])


def groups_layout(
    manifest: Iterable[TensorSpec],
    groups: Sequence[str],
    own: Mapping[str, Sequence[TensorSpec]] = MappingProxyType({}),
) -> Layout:
    """A file of an algorithm's groups only: server state, or what a client keeps."""
    return _layout(_group_specs(tuple(manifest), groups, own))


def largest_bytes(layout: Layout) -> int:
    """Bytes of a file of this layout, with an allowance for its header."""
    data = sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in layout.values())
    return data + _HEADER_ALLOWANCE + _HEADER_PER_TENSOR * len(layout)


def _group_specs(
    manifest: Sequence[TensorSpec], groups: Sequence[str], own: Mapping[str, Sequence[TensorSpec]]
) -> list[tuple[str, TensorSpec]]:
    parameters = [spec for spec in manifest if spec.kind is TensorKind.PARAMETER]
    return [(group, spec) for group in groups for spec in own.get(group, parameters)]


def _layout(items: Iterable[tuple[str, TensorSpec]]) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for group, spec in items:
        name = key(group, spec.name)
        _check_key(name, found)
        if spec.dtype not in DTYPES:
            raise InvalidConfiguration(
                f"tensor {shown(spec.name)} has dtype {shown(spec.dtype)}, which cannot be sent",
                hint=f"Known are {', '.join(DTYPES)}.",
            )
        found[name] = spec
    return found


def _check_key(name: str, taken: Mapping[str, object]) -> None:
    if name == METADATA or name in taken:
        reason = "is reserved by the file format" if name == METADATA else "stands for two tensors"
        raise InvalidConfiguration(
            f"the tensor key {shown(name)} {reason}", hint="Rename the parameter, buffer or tensor group."
        )


# ---------------------------------------------------------------- writing


def write(
    path: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    *,
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> Written:
    """Write ``{group: {name: tensor}}`` as safetensors; equal tensors (and metadata) give equal bytes.

    The file appears under its name whole, durable and with mode 0644, or not at all (``durable``: see
    :func:`shared.files.replacing`). Beyond the tensors given, memory for one of them is needed (for those
    not contiguous or not on the CPU).
    Raises InvalidConfiguration (a key twice, a dtype that cannot be sent), StorageUnavailable.
    """
    flat = _flatten(tensors)
    # widest first, so that every tensor is aligned to its itemsize; then by key
    order = sorted(flat, key=lambda name: (-flat[name].element_size(), name))
    digest, total = hashlib.sha256(), 0
    with replacing(path, durable=durable) as file:
        for data in _parts(order, flat, metadata or {}):
            digest.update(data)
            file.write(data)
            total += len(data)
    return Written(path, digest.hexdigest(), total)


def _flatten(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for group, members in tensors.items():
        for name, tensor in members.items():
            _check_key(key(group, name), flat)
            flat[key(group, name)] = tensor
    return flat


def _parts(
    order: Sequence[str], flat: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    yield _header_bytes(order, flat, metadata)
    for name in order:
        yield _bytes_of(flat[name])


def _header_bytes(order: Sequence[str], flat: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    from shared.wire.tensors import dtype_name

    items: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    position = 0
    for name in order:
        tensor = flat[name]
        stop = position + tensor.numel() * tensor.element_size()
        items[name] = {
            "dtype": dtype_name(tensor.dtype, name),
            "shape": list(tensor.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    import torch

    if not tensor.numel():
        return memoryview(b"")  # its strides may be anything
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


# ---------------------------------------------------------------- reading


class Opened:
    """A mapped file. Tensors point into the mapping: they are for use inside the ``with`` block only."""

    def __init__(self, mapping: mmap.mmap, header: Header) -> None:
        self._mapping = mapping
        self._header = header

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself."""
        return self._header.metadata

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of all tensors, in the order of their bytes."""
        return tuple(self._header.entries)

    def has(self, group: str, name: str) -> bool:
        return key(group, name) in self._header.entries

    def tensor(self, group: str, name: str) -> Tensor:
        """The tensor without copying (a private mapping: writing to it never reaches the file).

        Raises MissingTensor.
        """
        import torch

        entry = self._entry(group, name)
        dtype, count = DTYPES[entry.dtype], (entry.stop - entry.start) // DTYPES[entry.dtype].itemsize
        kind: torch.dtype = getattr(torch, dtype.torch)
        if count == 0:
            return torch.empty(entry.shape, dtype=kind)
        source: mmap.mmap | bytearray = self._mapping
        offset = self._header.data_start + entry.start
        if offset % dtype.itemsize:  # other writers need not align
            source, offset = bytearray(self._mapping[offset : offset + entry.stop - entry.start]), 0
        return torch.frombuffer(source, dtype=kind, count=count, offset=offset).reshape(entry.shape)

    def array(self, group: str, name: str) -> Any:
        """As :meth:`tensor`, as a numpy array, for what has to be looked at without PyTorch.

        Raises MissingTensor. Of the dtypes that numpy has: not BF16.
        """
        import numpy as np

        entry = self._entry(group, name)
        kind = np.dtype(DTYPES[entry.dtype].torch).newbyteorder("<")
        offset, count = self._header.data_start + entry.start, math.prod(entry.shape)
        if not count:
            return np.empty(entry.shape, kind)
        return np.frombuffer(self._mapping, kind, count, offset).reshape(entry.shape)

    def numbers(self, group: str, name: str, last: str | None = None) -> Numbers | Widened:
        """A floating tensor, flat, without PyTorch and without copying: for what is looked at in pieces.

        ``last``: with all tensors of the same dtype that follow it, up to this one. Of 16 bits: each piece
        becomes float32 when it is taken. Raises MissingTensor.
        """
        import numpy as np

        first, end = self._entry(group, name), self._entry(group, last or name)
        dtype = DTYPES[first.dtype]
        kind = np.dtype(f"<{'f' if dtype.itemsize > 2 else 'u'}{dtype.itemsize}")
        count = (end.stop - first.start) // dtype.itemsize
        found = (
            np.frombuffer(self._mapping, kind, count, self._header.data_start + first.start)
            if count
            else np.empty(0, kind)
        )
        return found if dtype.itemsize > 2 else Widened(found, first.dtype)

    def follows(self, group: str, name: str, before: str) -> bool:
        """Whether the tensor's bytes follow those of ``before``, and have its dtype."""
        mine, theirs = self._entry(group, name), self._entry(group, before)
        return mine.start == theirs.stop and mine.dtype == theirs.dtype

    def place(self, group: str, name: str) -> int:
        """Where the tensor's bytes begin among those of all."""
        return self._entry(group, name).start

    def _entry(self, group: str, name: str) -> Entry:
        entry = self._header.entries.get(key(group, name))
        if entry is None:
            raise MissingTensor(
                f"the file holds no tensor {shown(key(group, name))}", tensor=shown(key(group, name))
            )
        return entry

    def drop_pages(self) -> None:
        """Let what was read leave memory; what is read again comes from the file."""
        self._mapping.madvise(mmap.MADV_DONTNEED)


class Widened:
    """Numbers of 16 bits as float32: a slice of them is made when it is asked for."""

    def __init__(self, bits: NDArray[np.uint16], dtype: str) -> None:
        self._bits = bits
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._bits)

    def __getitem__(self, piece: slice, /) -> NDArray[np.float32]:
        return widen(self._bits[piece], self._dtype)


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Map a file and read its tensors one by one; at the end of the block its pages leave memory.

    Raises FileNotFoundError, and NotSafetensors or Truncated for what is no whole safetensors file.
    """
    with path.open("rb") as file:
        header = read_header(file)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    found = Opened(mapping, header)
    try:
        yield found
    finally:
        # not close(): a tensor that the caller still holds would point to nowhere. Its pages go in any case,
        # the mapping itself when the last tensor does.
        found.drop_pages()


def abreast(
    files: Sequence[Opened], group: str, names: Iterable[str]
) -> Iterator[tuple[Numbers | Widened, ...]]:
    """The numbers of all these tensors, file by file, side by side: each as long as the others.

    Tensors that follow one another in all files come as one. In the order of the first file's bytes.
    """
    runs: list[list[str]] = []
    for name in sorted(names, key=lambda name: (files[0].place(group, name), name)):
        if runs and all(file.follows(group, name, runs[-1][-1]) for file in files):
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        yield tuple(file.numbers(group, run[0], run[-1]) for file in files)


def read_group(path: Path, group: str, names: Iterable[str]) -> dict[str, Tensor]:
    """Copies of the named tensors of a group, in memory. Raises what :func:`opened` and ``tensor`` raise."""
    with opened(path) as file:
        return {name: file.tensor(group, name).clone() for name in names}
