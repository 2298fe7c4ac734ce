"""The blob store: a folder in which every file's name is the SHA-256 of its bytes.

::

    folder/ab/abcdef...    a blob
    folder/incoming/       bodies being received, workspaces of aggregations, never referred to
    folder/lock            held shared while a blob is put in place, exclusively while one is collected

Several coordinator processes may share the folder. Methods other than ``receive`` block on the disk:
call them from a thread. All raise StorageUnavailable when the disk refuses.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from server.blobs.receiving import Incoming, receive, take
from shared.files import PARTIAL, storage_errors, sync_folder
from shared.problems import NotFound, StorageUnavailable
from shared.schemas import DIGEST_PATTERN
from shared.wire.digests import digest_of

__all__ = ["BlobStore"]

_PROBE = b"\0" * 4096
BATCH = 100


class BlobStore:
    """Keeps, gives and collects blobs below ``folder``, which is made if it is not there.

    Without ``create`` nothing is made: for reading only.
    """

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self._incoming = folder / "incoming"
        if create:
            with self._storage_errors():
                self._incoming.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------ in

    async def receive(
        self,
        chunks: AsyncIterator[bytes],
        *,
        max_bytes: int,
        expected: str | None = None,
        announced_bytes: int | None = None,
    ) -> Incoming:
        """Stream a body into a temporary file, which the caller must ``keep`` or ``discard``.

        ``expected`` is the announced SHA-256 (hexadecimal), ``announced_bytes`` the Content-Length. After any
        failure, a disconnect or a cancellation no file is left.
        Raises TooLarge, Truncated, DigestMismatch, StorageUnavailable, and whatever ``chunks`` raises.
        """
        return await receive(
            self._incoming,
            chunks,
            max_bytes=max_bytes,
            expected=expected,
            announced_bytes=announced_bytes,
        )

    def take(self, body: bytes, *, max_bytes: int, expected: str, announced_bytes: int) -> Incoming:
        """``receive`` for a small body that is in memory already."""
        return take(
            self._incoming, body, max_bytes=max_bytes, expected=expected, announced_bytes=announced_bytes
        )

    def keep(self, incoming: Incoming) -> None:
        """Make a received body a blob, durably. Where the blob exists already it only becomes young again."""
        if not incoming.path.exists() and self.exists(incoming.digest):
            return  # kept before
        self._place(incoming.path, incoming.digest)

    def discard(self, incoming: Incoming) -> None:
        """Delete a received body that shall not become a blob; harmless after ``keep``."""
        with self._storage_errors():
            incoming.path.unlink(missing_ok=True)

    def adopt(self, path: Path, digest: str | None = None) -> str:
        """Move a file of this file system (best: made in a ``workspace``) into the store; its digest.

        ``digest`` spares reading the file again where it was computed while writing.
        """
        with self._storage_errors():
            digest = digest or digest_of(path)
        self._place(path, digest)
        return digest

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder inside the store, from which ``adopt`` is a mere rename; removed at the end."""
        with self._storage_errors():
            path = Path(tempfile.mkdtemp(dir=self._incoming, suffix=PARTIAL))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)  # what a full disk leaves, collect() takes

    # ------------------------------------------------------------ out

    def path(self, digest: str) -> Path:
        """Where the blob is or would be; NotFound for what is no digest (and could leave the folder)."""
        if not re.fullmatch(DIGEST_PATTERN, digest, re.ASCII) or len(digest) != 64:
            raise NotFound(
                f"{digest[:100]!a} is not a SHA-256", hint="A digest has 64 hexadecimal digits, lower case."
            )
        return self.folder / digest[:2] / digest

    def exists(self, digest: str) -> bool:
        with self._storage_errors():
            return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        """Length in bytes. Raises NotFound."""
        with self._found(digest) as path:
            return path.stat().st_size

    def open(self, digest: str) -> BinaryIO:
        """The blob, to be read and closed by the caller. Raises NotFound."""
        with self._found(digest) as path:
            return path.open("rb")

    # ------------------------------------------------------------ care

    def verify(self, digest: str) -> None:
        """Read the whole blob: NotFound if it is not there, StorageUnavailable if its bytes are others."""
        with self._found(digest) as path:
            actual, size = digest_of(path), path.stat().st_size
        if actual != digest:
            raise StorageUnavailable(
                f"blob {digest} in {self.folder} is damaged: its {size} bytes have the SHA-256 {actual}",
                hint="Restore the file from a backup, or upload it again, and check the disk.",
            )

    def collect(self, referenced: Iterable[str], older_than: dt.datetime) -> list[str]:
        """Delete blobs that nothing refers to and temporary files left by a crash; the blobs' digests.

        Nothing last put or written at or after ``older_than`` (aware) is touched: it may belong to a
        transaction that is not committed yet. Read ``referenced`` before the call, not earlier than
        ``older_than``.
        """
        limit, wanted = older_than.timestamp(), set(referenced)
        with self._storage_errors():
            self._collect_temporary(limit)
            candidates = [path for path in self._blobs() if path.name not in wanted]
            return [path.name for path in sorted(candidates) if self._delete_old(path, limit)]

    def remove(
        self, digests: Iterable[str], older_than: dt.datetime, forget: Callable[[Sequence[str]], None]
    ) -> list[str]:
        """Delete these blobs, which nothing needs any more, but none put at or after ``older_than`` (aware).

        ``forget`` is told which are gone, some at a time, before any of them can be put again: whoever puts
        one meanwhile waits. After a crash it is told again of those that it had not forgotten yet.
        """
        limit, chosen, gone = older_than.timestamp(), sorted(digests), list[str]()
        with self._storage_errors():
            for start in range(0, len(chosen), BATCH):
                with self._lock(fcntl.LOCK_EX):
                    batch = [one for one in chosen[start : start + BATCH] if self._delete(one, limit)]
                    forget(batch)
                gone += batch
        return gone

    def renew(self, digest: str) -> bool:
        """Whether the blob is there; if so, its grace period in ``collect`` begins anew."""
        with self._storage_errors(), self._lock(fcntl.LOCK_SH):
            try:
                os.utime(self.path(digest))
            except FileNotFoundError:
                return False
        return True

    def check(self) -> None:
        """For readiness: write and delete a small file."""
        with self._storage_errors(), tempfile.TemporaryFile(dir=self._incoming) as probe:
            probe.write(_PROBE)

    # ------------------------------------------------------------ inside

    def _place(self, source: Path, digest: str) -> None:
        target = self.path(digest)
        with self._storage_errors():
            with source.open("rb+") as file:
                os.fsync(file.fileno())
            os.utime(source)  # its grace period in collect() begins now
            if not target.parent.is_dir():
                target.parent.mkdir(exist_ok=True)
                sync_folder(self.folder)
            with self._lock(fcntl.LOCK_SH):
                # even over an existing blob: that renews its age and mends a damaged one
                os.replace(source, target)
            sync_folder(target.parent)

    def _blobs(self) -> Iterator[Path]:
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if re.fullmatch(DIGEST_PATTERN, path.name, re.ASCII):
                yield path

    def _delete_old(self, path: Path, limit: float) -> bool:
        # looked at under the lock, since keep() may have put it again a moment ago
        with self._lock(fcntl.LOCK_EX):
            return path.exists() and self._delete(path.name, limit)

    def _delete(self, digest: str, limit: float) -> bool:
        """Whether it is gone; under the lock."""
        path = self.path(digest)
        with suppress(FileNotFoundError):
            if path.stat().st_mtime >= limit:
                return False
            path.unlink()
        return True

    def _collect_temporary(self, limit: float) -> None:
        for path in self._incoming.iterdir():
            if _last_change(path) >= limit:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, kind)
            yield
        finally:
            os.close(handle)  # releases it

    @contextmanager
    def _found(self, digest: str) -> Iterator[Path]:
        path = self.path(digest)
        with self._storage_errors():
            try:
                yield path
            except FileNotFoundError as error:
                raise NotFound(
                    f"there is no blob {digest}",
                    hint="It was never uploaded, or was collected because no run refers to it.",
                ) from error

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.folder)


def _last_change(path: Path) -> float:
    """Newest modification of a file, or of a folder and the files in it; infinity if it has just gone."""
    try:
        inside = path.iterdir() if path.is_dir() else iter(())
        return max([path.stat().st_mtime, *(entry.stat().st_mtime for entry in inside)])
    except FileNotFoundError:
        return float("inf")
