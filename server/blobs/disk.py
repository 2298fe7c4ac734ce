"""Blobs in a folder, which several coordinator processes may share.

::

    folder/ab/abcdef...    a blob
    folder/incoming/       see ``store``
    folder/lock            held shared while a blob is put in place, exclusively while one is collected
    folder/database-id     whose the blobs are
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from server.blobs.store import BATCH, BlobStore, Identity, is_digest
from shared.files import make_folder, replace_file, sync_folder
from shared.wire.digests import digest_of

__all__ = ["MARK", "DiskBlobs", "file_lock", "identify_file"]

MARK = "database-id"


def identify_file(path: Path) -> Identity:
    """Changes with every write to the file, and when another one takes its place. Raises OSError."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def file_lock(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Held for the block, against other threads and processes of this machine. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)  # releases it


class DiskBlobs(BlobStore):
    """``path`` is where the blob itself is."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        super().__init__(folder, create=create)
        self._synced: set[Path] = set()  # folders of blobs whose names are known to be durable

    def __str__(self) -> str:
        return str(self.folder)

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        path = self.path(digest)
        with self._found(digest):
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield path

    def exists(self, digest: str) -> bool:
        with self._storage_errors():
            return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        with self._found(digest):
            return self.path(digest).stat().st_size

    # ------------------------------------------------------------ care

    def identify(self, digest: str) -> Identity:
        return identify_file(self.path(digest))

    def hash(self, digest: str) -> str:
        return digest_of(self.path(digest))

    def read_anew(self, digest: str, piece_bytes: int) -> Iterator[bytes]:
        with self.path(digest).open("rb") as file:
            if hasattr(os, "posix_fadvise"):  # without what the system remembers: the disk is to be asked
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while piece := file.read(piece_bytes):
                yield piece

    def collect(self, referenced: Iterable[str], older_than: dt.datetime) -> list[str]:
        limit, wanted = older_than.timestamp(), set(referenced)
        with self._storage_errors():
            self._collect_temporary(limit)
            candidates = [path for path in self._blobs() if path.name not in wanted]
            return [path.name for path in sorted(candidates) if self._delete_old(path, limit)]

    def remove(
        self, digests: Iterable[str], older_than: dt.datetime, forget: Callable[[Sequence[str]], None]
    ) -> list[str]:
        limit, chosen, gone = older_than.timestamp(), sorted(digests), list[str]()
        with self._storage_errors():
            for start in range(0, len(chosen), BATCH):
                with self._lock(exclusive=True):
                    batch = [one for one in chosen[start : start + BATCH] if self._delete(one, limit)]
                    forget(batch)
                gone += batch
        return gone

    def renew(self, digest: str) -> bool:
        with self._storage_errors(), self._lock(exclusive=False):
            try:
                os.utime(self.path(digest))
            except FileNotFoundError:
                return False
        return True

    # ------------------------------------------------------------ whose it is

    def read_owner(self) -> str | None:
        with self._storage_errors():
            try:
                return (self.folder / MARK).read_text(encoding="ascii", errors="replace").strip()
            except FileNotFoundError:
                return None

    def write_owner(self, database_id: str, *, overwrite: bool) -> None:
        replace_file(self.folder / MARK, f"{database_id}\n".encode(), overwrite=overwrite)

    def has_blobs(self) -> bool:
        with self._storage_errors():
            return next(self.folder.glob("[0-9a-f][0-9a-f]/*"), None) is not None

    # ------------------------------------------------------------ inside

    def _place(self, source: Path, digest: str) -> None:
        target = self.path(digest)
        with self._storage_errors():
            with source.open("rb+") as file:
                os.fsync(file.fileno())
            os.utime(source)  # its grace period in collect() begins now
            if target.parent not in self._synced:  # one that is there may have been made a moment ago
                make_folder(target.parent)
                self._synced.add(target.parent)
            with self._lock(exclusive=False):
                # even over an existing blob: that renews its age and mends a damaged one
                os.replace(source, target)
            sync_folder(target.parent)

    def _blobs(self) -> Iterator[Path]:
        found = self.folder.glob("[0-9a-f][0-9a-f]/*")
        return (path for path in found if is_digest(path.name) and path == self.path(path.name))

    def _delete_old(self, path: Path, limit: float) -> bool:
        # looked at under the lock, since keep() may have put it again a moment ago
        with self._lock(exclusive=True):
            return path.exists() and self._delete(path.name, limit)

    def _delete(self, digest: str, limit: float) -> bool:
        """Whether it is gone; under the lock."""
        path = self.path(digest)
        with suppress(FileNotFoundError):
            if path.stat().st_mtime >= limit:
                return False
            path.unlink()
        return True

    @contextmanager
    def _lock(self, *, exclusive: bool) -> Iterator[None]:
        with file_lock(self.folder / "lock", exclusive=exclusive):
            yield
