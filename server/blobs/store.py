"""What a blob store does, wherever its files are: in a folder (``disk``), or in a bucket (``s3``).

Every file's name is the SHA-256 of its bytes. Bodies are received, and results computed, in a folder of
this machine::

    folder/incoming/       bodies being received, workspaces of aggregations, never referred to

Methods other than ``receive`` block on disk or network: call them from a thread. All raise
StorageUnavailable when the storage refuses.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from server.blobs.receiving import Incoming, receive, take
from shared.files import PARTIAL, make_folder, storage_errors
from shared.problems import NotFound, StorageUnavailable
from shared.schemas import DIGEST_PATTERN
from shared.wire.digests import digest_of

__all__ = ["BATCH", "BlobStore", "Identity", "is_digest"]

_PROBE = b"\0" * 4096
BATCH = 100

Identity = tuple[object, ...]
"""Tells a stored file from the one that was there before under the same digest, without reading it."""


def is_digest(name: object) -> bool:
    """Whether a file of this name is a blob. What a damaged database gives may be no text."""
    return (
        isinstance(name, str) and len(name) == 64 and re.fullmatch(DIGEST_PATTERN, name, re.ASCII) is not None
    )


class BlobStore(ABC):
    """Keeps, gives and collects blobs. ``folder``, on this machine, is made if it is not there.

    Without ``create`` nothing is made: for reading only.
    """

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        self._incoming = folder / "incoming"
        if create:
            with self._storage_errors():
                make_folder(folder)
                make_folder(self._incoming)

    @abstractmethod
    def __str__(self) -> str:
        """Where the blobs are, for people. No credentials."""

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

    @abstractmethod
    def _place(self, source: Path, digest: str) -> None:
        """Make a local file the blob, durably."""

    # ------------------------------------------------------------ out

    def path(self, digest: str) -> Path:
        """Where a local copy is or would be; NotFound for what is no digest (and could leave the folder)."""
        if not is_digest(digest):
            raise NotFound(
                f"{digest[:100]!a} is not a SHA-256", hint="A digest has 64 hexadecimal digits, lower case."
            )
        return self.folder / digest[:2] / digest

    @abstractmethod
    def local(self, digest: str) -> AbstractContextManager[Path]:
        """The blob as a file of this machine, which is there until the end of the block. Raises NotFound."""

    @abstractmethod
    def exists(self, digest: str) -> bool: ...

    @abstractmethod
    def size(self, digest: str) -> int:
        """Length in bytes. Raises NotFound."""

    def open(self, digest: str) -> BinaryIO:
        """The blob, to be read and closed by the caller. Raises NotFound."""
        with self.local(digest) as path, self._found(digest):
            return path.open("rb")

    # ------------------------------------------------------------ care

    @abstractmethod
    def identify(self, digest: str) -> Identity:
        """Changes whenever the stored file changes. Raises OSError, StorageUnavailable."""

    @abstractmethod
    def hash(self, digest: str) -> str:
        """The SHA-256 of the bytes that are stored under this name. Raises OSError, StorageUnavailable."""

    @abstractmethod
    def read_anew(self, digest: str, piece_bytes: int) -> Iterator[bytes]:
        """The stored bytes in pieces, past all copies. Raises OSError, StorageUnavailable."""

    def verify(self, digest: str) -> None:
        """Read the whole blob: NotFound if it is not there, StorageUnavailable if its bytes are others."""
        with self._found(digest):
            actual = self.hash(digest)
        if actual != digest:
            raise StorageUnavailable(
                f"blob {digest} in {self} is damaged: its {self.size(digest)} bytes have the SHA-256 "
                f"{actual}",
                hint="Restore the file from a backup, or upload it again, and check the disk.",
                public=f"the stored file {digest} is damaged",
            )

    @abstractmethod
    def collect(self, referenced: Iterable[str], older_than: dt.datetime) -> list[str]:
        """Delete blobs that nothing refers to and temporary files left by a crash; the blobs' digests.

        Nothing last put or written at or after ``older_than`` (aware) is touched: it may belong to a
        transaction that is not committed yet. Read ``referenced`` before the call, not earlier than
        ``older_than``.
        """

    @abstractmethod
    def remove(
        self, digests: Iterable[str], older_than: dt.datetime, forget: Callable[[Sequence[str]], None]
    ) -> list[str]:
        """Delete these blobs, which nothing needs any more, but none put at or after ``older_than`` (aware).

        ``forget`` is told which are gone, some at a time, before any of them can be put again: whoever puts
        one meanwhile waits. After a crash it is told again of those that it had not forgotten yet.
        """

    @abstractmethod
    def renew(self, digest: str) -> bool:
        """Whether the blob is there; if so, its grace period in ``collect`` begins anew."""

    def check(self) -> None:
        """For readiness: write and delete a small file."""
        with self._storage_errors(), tempfile.TemporaryFile(dir=self._incoming) as probe:
            probe.write(_PROBE)

    # ------------------------------------------------------------ whose it is

    @abstractmethod
    def read_owner(self) -> str | None:
        """The id of the database that the blobs belong to; None if it was never said."""

    @abstractmethod
    def write_owner(self, database_id: str, *, overwrite: bool) -> None:
        """Say whose the blobs are; without ``overwrite`` only if nobody has."""

    @abstractmethod
    def has_blobs(self) -> bool: ...

    # ------------------------------------------------------------ inside

    def _collect_temporary(self, limit: float) -> None:
        for path in self._incoming.iterdir():
            if _last_change(path) >= limit:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def _found(self, digest: str) -> Iterator[None]:
        with self._storage_errors():
            try:
                yield
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
