"""Whether stored updates are still the bytes that were received, without reading them twice for nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from cachetools import LRUCache

from shared.problems import StorageUnavailable
from shared.wire.digests import digest_of

__all__ = ["BlobIntegrity"]

REMEMBERED = 10_000


class BlobIntegrity:
    """Remembers files that this process has hashed itself; any later change shows in what ``stat`` says.

    A file that was not seen by this process (another one took it, or this one was restarted) is hashed.
    Used from several threads.
    """

    def __init__(self) -> None:
        self._seen: LRUCache[str, tuple[int, int, int]] = LRUCache(REMEMBERED)
        self._lock = threading.Lock()

    def remember(self, path: Path, digest: str) -> None:
        """The file's bytes have just been hashed, with this result."""
        identity = _identity(path)
        with self._lock:
            self._seen[digest] = identity

    def fault(self, path: Path, digest: str) -> str | None:
        """What is wrong with the file, None if nothing. StorageUnavailable if the disk does not say."""
        try:
            with self._lock:
                seen = self._seen.get(digest)
            if seen == _identity(path):
                return None
            if digest_of(path) != digest:
                return "is damaged: its bytes have another SHA-256"
            self.remember(path, digest)
        except OSError as error:  # missing, too: what was accepted is not given up while it may come back
            raise StorageUnavailable(
                f"{path} cannot be read: {error.strerror}",
                hint="Check the disk, and that all coordinators share the data folder; the round waits.",
            ) from error
        return None


def _identity(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
