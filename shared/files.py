"""Durable files: a temporary name, fsync, rename, fsync of the folder; and what to say when that fails."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shared.problems import StorageUnavailable

__all__ = ["MODE", "PARTIAL", "replacing", "storage_errors", "sync_folder"]

MODE = 0o644  # a second container or a backup under another user must be able to read a shared volume
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
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames and new names inside ``folder`` survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write that appears at ``path``, whole and durable, only if the block succeeds.

    Until then it has a temporary name (``*.partial``) in the same folder; after a failure nothing is left.
    Without ``durable`` the file outlives this process, but perhaps not a power loss: for what can be made
    again, and whose digest is kept elsewhere. Raises StorageUnavailable.
    """
    with storage_errors(path.parent):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=PARTIAL)
        try:
            with open(handle, "wb") as file:
                os.fchmod(handle, MODE)
                yield file
                file.flush()
                if durable:
                    os.fsync(handle)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        if durable:
            sync_folder(path.parent)
