"""Files that appear whole: a temporary name, fsync, rename, fsync of the folder; and errors that help."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shared.problems import StorageUnavailable

__all__ = [
    "MODE",
    "PARTIAL",
    "PRIVATE",
    "make_folder",
    "remove_partial",
    "replace_file",
    "replacing",
    "storage_errors",
    "sync_folder",
]

MODE = 0o644  # a second container or a backup under another user must be able to read a shared volume
PRIVATE = 0o600  # tokens
PARTIAL = ".partial"

_ADVICE = {
    errno.ENOSPC: "The disk is full: free space or move the folder to a larger disk.",
    errno.EDQUOT: "The disk quota is used up: free space or raise the quota.",
    errno.EACCES: "Give this process's user the right to write there.",
    errno.EPERM: "Give this process's user the right to write there.",
    errno.EROFS: "The file system is mounted read-only: mount it for writing.",
    errno.ENOENT: "Create the folder, or mount the volume that it is on.",
    errno.ENOTDIR: "There is a file where a folder is needed: choose another folder.",
}


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals inside the block into StorageUnavailable.

    It names the folder, the system's reason and what to do; the OSError stays its cause.
    """
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(
            f"cannot read or write in {folder}: {error.strerror or error}",
            hint=_ADVICE.get(error.errno or 0, "Look at the disk and at the system's log."),
            public=f"the storage cannot be used: {error.strerror or 'a fault of the disk'}",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames and new names inside ``folder`` survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make the folder, and those above it, where they are missing; they survive a power loss.

    One that is there may have been made a moment before its maker was killed: its name is synced as well,
    where this user may. Raises OSError.
    """
    missing = list(itertools.takewhile(lambda each: not each.is_dir(), (folder, *folder.parents)))
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)
    if not missing:
        with suppress(OSError):
            sync_folder(folder.parent)


@contextmanager
def replacing(
    path: Path, *, durable: bool = True, mode: int = MODE, overwrite: bool = True
) -> Iterator[BinaryIO]:
    """A file to write that appears at ``path`` only if the block succeeds, and whole.

    Until then it has a temporary name (``.*.partial``) in the same folder; an exception leaves nothing.

    Args:
        durable: it survives a power loss. Otherwise only the death of this process: for what can be made
            again, or whose digest is kept elsewhere.
        mode: its permissions.
        overwrite: False leaves a file that is at ``path`` already, and drops this one.

    Raises:
        StorageUnavailable: the system refused; the OSError is its cause.
    """
    with storage_errors(path.parent):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=PARTIAL)
        try:
            with open(handle, "wb") as file:
                os.fchmod(handle, mode)
                yield file
                file.flush()
                if durable:
                    os.fsync(handle)
            if overwrite:
                os.replace(name, path)
            else:
                _link_new(name, path)
        except BaseException:
            os.unlink(name)
            raise
        if durable:
            sync_folder(path.parent)


def _link_new(name: str, path: Path) -> None:
    with suppress(FileExistsError):
        os.link(name, path)
    os.unlink(name)


def replace_file(
    path: Path, content: bytes, *, durable: bool = True, mode: int = MODE, overwrite: bool = True
) -> None:
    """:func:`replacing` for content that is in memory."""
    with replacing(path, durable=durable, mode=mode, overwrite=overwrite) as file:
        file.write(content)


def remove_partial(folder: Path) -> None:
    """Delete what a killed process left half written; only where no other process writes now."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)
