"""Examples in memory, and readers for how data sets come: folders, zips, tars; images, idx files.

Nothing here unpickles: what is read are images and fixed binary formats.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import math
import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shared.left_out import LeftOut, OnBroken, Reason, printable
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "READ_FAULTS",
    "Archive",
    "Examples",
    "FileList",
    "Unlabelled",
    "describe_fault",
    "find_file",
    "fingerprint_of",
    "list_sizes",
    "opened",
    "read_idx",
]


@dataclass(frozen=True)
class Examples:
    """A data set, whole and resident: ``inputs`` (N, ...), images as uint8; ``targets`` (N,).

    ``keys``, int64 (N,), say who an example is of where the data tell (a writer, a page): the number of
    the key in the sorted order of all keys of both splits. They deal the data to clients (``by-key``).
    ``left_out`` is what the data hold beside these examples.
    """

    inputs: Tensor
    targets: Tensor
    keys: Tensor | None = None
    left_out: LeftOut = field(default_factory=LeftOut, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")
        if self.keys is not None and len(self.keys) != len(self.targets):
            raise ValueError(f"{len(self.keys)} keys but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def digest(self) -> str:
        """SHA-256 in hex of inputs, targets and keys, as they are in memory."""
        return _digest_tensors(self.inputs, self.targets, self.keys)

    def digest_inputs(self) -> str:
        """The same of the inputs alone, whatever a task makes of them."""
        return _digest_tensors(self.inputs)

    def subset(self, indices: NDArray[np.int64] | Tensor) -> Examples:
        """A copy of the examples at ``indices``, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.targets.device)
        keys = None if self.keys is None else self.keys.index_select(0, chosen)
        inputs, targets = self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)
        return Examples(inputs, targets, keys, self.left_out)

    def to(self, device: torch.device) -> Examples:
        """The same examples resident on ``device``."""
        keys = None if self.keys is None else self.keys.to(device)
        return Examples(self.inputs.to(device), self.targets.to(device), keys, self.left_out)


def _digest_tensors(*tensors: Tensor | None) -> str:
    told = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            told.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            told.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return told.hexdigest()


@dataclass(frozen=True)
class Unlabelled:
    """Inputs (N, ...) as those of examples, and what each is: a file, or a file and a line.

    ``left_out`` is what could not be read.
    """

    names: tuple[str, ...]
    inputs: Tensor
    left_out: LeftOut = field(default_factory=LeftOut, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.names)


# ---------------------------------------------------------------- folders, zips and tars alike


class Archive(ABC):
    """A folder, a zip or a tar as sorted relative names and their bytes.

    ``left_out`` collects what its readers leave out; files that are hidden are in it from the start.
    """

    path: Path
    names: tuple[str, ...]
    left_out: LeftOut

    def _take(self, path: Path, names: Iterable[str]) -> None:
        self.path, self.left_out = path, LeftOut()
        self.names = self._visible(names)

    def _visible(self, names: Iterable[str]) -> tuple[str, ...]:
        """Sorted, without what desktops and file systems leave behind."""
        found = sorted(names)
        for name in found:
            if _is_hidden(name):
                self.left_out.add(Reason.HIDDEN, name)
        return tuple(name for name in found if not _is_hidden(name))

    def read(self, name: str) -> bytes:
        """The file's bytes; :class:`InvalidConfiguration` if they cannot be had."""
        try:
            return self.read_bytes(name)
        except READ_FAULTS as error:
            why = describe_fault(error)[1]
            raise InvalidConfiguration(f"data: {printable(name)} in {self.path} {why}.") from error

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """The same, with whatever the file system or the archive raises: one of ``READ_FAULTS``."""

    def fingerprint(self) -> str:
        """Changes when the contents may have: place, size and times of change."""
        return _state(self.path)


READ_FAULTS = (
    OSError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)
"""What reading from a folder, zip or tar may raise (zipfile: RuntimeError where it is encrypted)."""


def describe_fault(error: Exception) -> tuple[Reason, str]:
    """Why a file could not be read, to be said after its name."""
    if isinstance(error, PermissionError):
        return Reason.UNREADABLE, f"may not be read by this user ({error.strerror})"
    if isinstance(error, OSError):
        return Reason.UNREADABLE, f"cannot be read ({error.strerror or error})"
    if isinstance(error, RuntimeError):
        return Reason.UNREADABLE, "is encrypted or compressed in a way that is not known here"
    return Reason.BROKEN, "is damaged in its archive"


class _Folder(Archive):
    """Links to folders are followed, but none twice."""

    def __init__(self, path: Path) -> None:
        self._unreadable: list[OSError] = []
        self._take(path, _walk(path, self._unreadable.append))
        for error in self._unreadable:
            if Path(error.filename) == path:
                raise error
            name = os.path.relpath(error.filename, path)
            if not _is_hidden(name):
                self.left_out.add(Reason.UNREADABLE, name, describe_fault(error)[1])

    def read_bytes(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def fingerprint(self) -> str:
        unreadable = (f"{error.filename} {error.strerror}" for error in self._unreadable)
        return "\n".join((*(_state(self.path / name) for name in self.names), *unreadable))


class FileList(Archive):
    """Files that were named one by one, in that order, hidden or not."""

    def __init__(self, files: Iterable[str | Path]) -> None:
        self.path, self.left_out = Path.cwd(), LeftOut()
        self.names = tuple(map(str, files))

    def read_bytes(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class _Zip(Archive):
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {_zip_name(item): item for item in archive.infolist() if not item.is_dir()}
        self._take(path, self._members)

    def read_bytes(self, name: str) -> bytes:
        return self._archive.read(self._members[_follow(name, self._read_link)])

    def _read_link(self, name: str) -> str | None:
        item = self._members[name]
        if not stat.S_ISLNK(item.external_attr >> 16):
            return None
        return _beside(name, os.fsdecode(self._archive.read(item)))


class _Tar(Archive):
    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {
            item.name.removeprefix("./"): item
            for item in archive.getmembers()
            if item.isfile() or item.islnk() or item.issym()
        }
        self._take(path, self._members)

    def read_bytes(self, name: str) -> bytes:
        stream = self._archive.extractfile(self._members[_follow(name, self._read_link)])
        if stream is None:
            raise FileNotFoundError(0, "is no file", name)
        return stream.read()

    def _read_link(self, name: str) -> str | None:
        item = self._members[name]
        if item.issym():
            return _beside(name, item.linkname)
        return item.linkname.removeprefix("./") if item.islnk() else None


def _follow(name: str, read_link: Callable[[str], str | None]) -> str:
    """The file in an archive that a name stands for, over any links.

    ``read_link``: the name that one leads to, None of a file; KeyError if nothing has the name.

    Raises:
        FileNotFoundError: a link leads to no file in the archive, or in a circle.
    """
    seen, here = {name}, name
    try:
        while (there := read_link(here)) is not None:
            if there in seen:
                raise FileNotFoundError(0, "it is a link that leads back to itself", name)
            seen.add(there)
            here = there
    except KeyError:
        raise FileNotFoundError(
            0, f"it is a link to {printable(here)}, no file of the archive", name
        ) from None
    return here


def _beside(name: str, link: str) -> str:
    """Where a symbolic link leads, from the folder that it is in."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link))


def _walk(path: Path, on_error: Callable[[OSError], object]) -> Iterator[str]:
    """Relative names of all files, with those that no text encoding knows (surrogate escapes)."""
    seen: set[str] = set()
    for folder, folders, files in os.walk(path, onerror=on_error, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in files:
            file = Path(folder, name)
            if not _is_something_else(file):
                yield file.relative_to(path).as_posix()


def _is_something_else(path: Path) -> bool:
    """A socket, say. What nobody may look at, and a link into nowhere, are told when they are read."""
    try:
        return not (path.is_file() or path.is_symlink())
    except OSError:
        return False


def _zip_name(item: zipfile.ZipInfo) -> str:
    """The member's name; one without the mark for UTF-8 may be UTF-8 all the same, as many programs write."""
    if item.flag_bits & 0x800:
        return item.filename
    try:
        return item.filename.encode("cp437").decode()
    except UnicodeError:
        return item.filename


def _is_hidden(name: str) -> bool:
    return any(
        part.startswith((".", "__MACOSX")) or part in ("Thumbs.db", "desktop.ini", "lost+found")
        for part in name.split("/")
    )


def fingerprint_of(source: Path | None) -> str:
    """Changes when what lies at ``source``, a file or a folder, may have; empty if nothing lies there.

    Names, sizes and times, as a SHA-256 in hex; the contents are not read.
    """
    try:
        if source is None or not source.exists():
            return ""
        state = _Folder(source).fingerprint() if source.is_dir() else _state(source)
    except OSError as error:
        state = f"{source} {error.strerror}"
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest() if state else ""


def list_sizes(source: Path | None) -> tuple[tuple[str, int], ...]:
    """Names and sizes of what lies at ``source``, a file or a folder; empty if nothing does.

    Other than the fingerprint it stays where files are touched, linked, moved or mounted elsewhere.
    """
    try:
        if source is None or not source.exists():
            return ()
        if not source.is_dir():
            return ((source.name, source.stat().st_size),)
        return tuple((name, _size(source / name)) for name in _Folder(source).names)
    except OSError:
        return ()


def _size(path: Path) -> int:
    """-1 if it cannot be told."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _state(path: Path) -> str:
    """With the time of change (ctime), which moving and copying do not preserve: two images of one size
    and time of modification may have changed places."""
    try:
        status = path.lstat() if path.is_symlink() and not path.exists() else path.stat()
        return f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    except OSError as error:  # in a folder that may be listed and not entered, or on a share that is away
        return f"{path} {error.strerror}"


@contextmanager
def opened(source: Path | None, wanted: str, on_broken: OnBroken = "decline") -> Iterator[Archive]:
    """The folder, zip or tar at ``source``; ``wanted`` describes what should be in it, for the errors.

    With ``on_broken`` "decline", what was left out as broken is refused at the end, all of it at once.

    Raises:
        InvalidConfiguration: nothing there, or neither a folder nor an archive that can be read.
    """
    if source is None:
        raise InvalidConfiguration(
            f"data: no place given for {wanted}.", hint="Say where it lies: --data PATH."
        )
    with ExitStack() as stack:
        try:
            archive = _open(source, wanted, stack)
        except READ_FAULTS as error:
            raise InvalidConfiguration(f"data: {source} {describe_fault(error)[1]}.") from error
        except UnicodeDecodeError as error:
            raise InvalidConfiguration(
                f"data: {source} has a file name that is marked as UTF-8 and is none.",
                hint="Pack the archive anew, or unpack it and give the folder.",
            ) from error
        try:
            yield archive
        except InvalidConfiguration as fault:
            if "absent" in fault.extra and archive.left_out.has(Reason.UNREADABLE):
                archive.left_out.refuse_faults(source)  # it may be where nobody could look
            raise
        if on_broken == "decline":
            archive.left_out.refuse_faults(source)


def _open(source: Path, wanted: str, stack: ExitStack) -> Archive:
    if source.is_dir():
        return _Folder(source)
    if zipfile.is_zipfile(source):
        return _Zip(source, stack.enter_context(zipfile.ZipFile(source)))
    if source.is_file() and tarfile.is_tarfile(source):
        return _Tar(source, stack.enter_context(tarfile.open(source)))
    state = "is neither a folder nor a zip or tar" if source.exists() else "does not exist"
    raise InvalidConfiguration(f"data: looked for {wanted} at {source}, which {state}.")


def find_file(archive: Archive, names: Sequence[str]) -> str:
    """The one file in ``archive``, at any depth, that has one of the ``names``.

    Raises:
        InvalidConfiguration: there is none (``absent``); lists the names and some of what is there.
    """
    for name in archive.names:
        if name.rsplit("/", 1)[-1] in names:
            return name
    there = ", ".join(map(printable, archive.names[:5])) or "nothing"
    raise InvalidConfiguration(
        f"data: looked for {' or '.join(names)} in {archive.path} (at any depth), found {there}"
        f"{' ...' if len(archive.names) > 5 else ''}.",
        absent=True,
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
