"""Whether stored files are still the bytes of their digest, without reading them twice for nothing."""

from __future__ import annotations

import threading

from cachetools import LRUCache

from server.blobs.store import BlobStore, Identity

__all__ = ["DAMAGED", "BlobIntegrity", "describe_os_error"]

REMEMBERED = 10_000
LOCKS = 16
MISSING = "is missing"
DAMAGED = "is damaged: its bytes have another SHA-256"


class BlobIntegrity:
    """Remembers files that this process has hashed itself; any later change shows in what identifies them.

    A file that was not seen by this process (another one took it, or this one was restarted) is hashed.
    A disk that returns other bytes without a change of the file is not noticed here: the scrub reads all
    again. Used from several threads.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._seen: LRUCache[str, Identity] = LRUCache(REMEMBERED)
        self._lock = threading.Lock()
        self._reading = [threading.Lock() for _ in range(LOCKS)]

    def remember(self, digest: str) -> None:
        """The stored bytes have just been hashed, with this result."""
        identity = self._blobs.identify(digest)
        with self._lock:
            self._seen[digest] = identity

    def forget(self, digest: str) -> None:
        """The file is to be hashed before it is believed again."""
        with self._lock:
            self._seen.pop(digest, None)

    def has_seen(self, digest: str) -> bool:
        """Whether this process has hashed a file of this digest, which may have changed since."""
        with self._lock:
            return digest in self._seen

    def is_remembered(self, digest: str) -> bool:
        """Whether the file need not be read again to know that it is intact. OSError if it is not there."""
        with self._lock:
            seen = self._seen.get(digest)
        return seen == self._blobs.identify(digest)

    def find_fault(self, digest: str) -> str | None:
        """What is wrong with the stored file, None if nothing.

        Raises:
            StorageUnavailable: a bucket does not answer, which says nothing about the file.
        """
        # those who ask for the same new file at the same moment wait for the first, who reads it
        with self._reading[int(digest[:2], 16) % LOCKS]:
            try:
                if self.is_remembered(digest):
                    return None
                if self._blobs.hash(digest) != digest:
                    return DAMAGED
                self.remember(digest)
            except OSError as error:
                return describe_os_error(error)
        return None


def describe_os_error(error: OSError) -> str:
    """The fault of a file that the system does not let us read."""
    return MISSING if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
