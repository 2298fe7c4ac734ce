"""Examples in memory, and readers for how data sets come: folders, zips, tars; images, idx files.

Nothing here unpickles: what is read are images and fixed binary formats.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Archive", "Examples", "find_file", "fingerprint_of", "opened", "read_idx"]


@dataclass(frozen=True)
class Examples:
    """A data set, whole and resident: ``inputs`` (N, ...), images as uint8; ``targets`` (N,).

    ``keys``, int64 (N,), say who an example is of where the data tell (a writer, a page): the number of
    the key in the sorted order of all keys of both splits. They deal the data to clients (``by-key``).
    """

    inputs: Tensor
    targets: Tensor
    keys: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")
        if self.keys is not None and len(self.keys) != len(self.targets):
            raise ValueError(f"{len(self.keys)} keys but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: NDArray[np.int64] | Tensor) -> Examples:
        """A copy of the examples at ``indices``, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.targets.device)
        keys = None if self.keys is None else self.keys.index_select(0, chosen)
        return Examples(self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen), keys)

    def to(self, device: torch.device) -> Examples:
        """The same examples resident on ``device``."""
        keys = None if self.keys is None else self.keys.to(device)
        return Examples(self.inputs.to(device), self.targets.to(device), keys)


# ---------------------------------------------------------------- folders, zips and tars alike


class Archive(ABC):
    """A folder, a zip or a tar as sorted relative names and their bytes."""

    path: Path
    names: tuple[str, ...]

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    def fingerprint(self) -> str:
        """Changes when the contents may have: place, size and times of change."""
        return _state(self.path)


class _Folder(Archive):
    def __init__(self, path: Path) -> None:
        self.path = path
        files = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        self.names = _visible(files)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def fingerprint(self) -> str:
        return "\n".join(_state(self.path / name) for name in self.names)


class _Zip(Archive):
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self.names = _visible(item.filename for item in archive.infolist() if not item.is_dir())

    def read(self, name: str) -> bytes:
        return self._archive.read(name)


class _Tar(Archive):
    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self.path = path
        self._archive = archive
        self._members = {item.name.removeprefix("./"): item for item in archive.getmembers() if item.isfile()}
        self.names = _visible(self._members)

    def read(self, name: str) -> bytes:
        stream = self._archive.extractfile(self._members[name])
        if stream is None:
            raise KeyError(name)
        return stream.read()


def fingerprint_of(source: Path | None) -> str:
    """Changes when what lies at ``source``, a file or a folder, may have; empty if nothing lies there.

    Names, sizes and times, as a SHA-256 in hex; the contents are not read.
    """
    if source is None or not source.exists():
        return ""
    state = _Folder(source).fingerprint() if source.is_dir() else _state(source)
    return hashlib.sha256(state.encode()).hexdigest() if state else ""


def _state(path: Path) -> str:
    """With the time of change (ctime), which moving and copying do not preserve: two images of one size
    and time of modification may have changed places."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _visible(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted, without what desktops leave behind (.DS_Store, __MACOSX, Thumbs.db)."""
    return tuple(
        sorted(
            name
            for name in names
            if not any(part.startswith((".", "__MACOSX")) or part == "Thumbs.db" for part in name.split("/"))
        )
    )


@contextmanager
def opened(source: Path | None, wanted: str) -> Iterator[Archive]:
    """The folder, zip or tar at ``source``; ``wanted`` describes what should be in it, for the errors.

    Raises:
        InvalidConfiguration: nothing there, or neither a folder nor an archive that can be read.
    """
    if source is None:
        raise InvalidConfiguration(f"data: no place given for {wanted}.", hint="Say where it lies (a path).")
    if source.is_dir():
        yield _Folder(source)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            yield _Zip(source, archive)
    elif source.is_file() and tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            yield _Tar(source, archive)
    else:
        state = "is neither a folder nor a zip or tar" if source.exists() else "does not exist"
        raise InvalidConfiguration(f"data: looked for {wanted} at {source}, which {state}.")


def find_file(archive: Archive, names: Sequence[str]) -> str:
    """The one file in ``archive``, at any depth, that has one of the ``names``.

    Raises:
        InvalidConfiguration: there is none; lists the names and some of what is there.
    """
    for name in archive.names:
        if name.rsplit("/", 1)[-1] in names:
            return name
    there = ", ".join(archive.names[:5]) or "nothing"
    raise InvalidConfiguration(
        f"data: looked for {' or '.join(names)} in {archive.path} (at any depth), found {there}"
        f"{' ...' if len(archive.names) > 5 else ''}."
    )


# ---------------------------------------------------------------- formats


def read_idx(data: bytes, where: str) -> Tensor:
    """The uint8 tensor in an idx file (LeCun's format: 0, 0, type, rank, sizes, values), gzipped or not.

    Raises:
        InvalidConfiguration: names ``where`` and what is wrong.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidConfiguration(f"data: {where} is not gzip all through: {error}.") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise InvalidConfiguration(f"data: {where} is not an idx file of bytes (it starts {data[:4]!r}).")
    header = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:header]) if len(data) >= header else ()
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8)[header:]
    if not shape or values.numel() != math.prod(shape):
        raise InvalidConfiguration(
            f"data: {where} announces the shape {list(shape)} but holds {values.numel()} values."
        )
    return values.view(shape)
