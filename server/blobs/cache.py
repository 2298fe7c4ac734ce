"""The small blobs that were read last: all clients of a round fetch the same new model at the same time."""

from __future__ import annotations

from cachetools import LRUCache

__all__ = ["BLOBS", "BLOB_BYTES", "BlobCache"]

BLOBS = 16
BLOB_BYTES = 2**20


class BlobCache(LRUCache[str, bytes]):
    """Bytes by digest. They cannot change, so a cached copy is never wrong. Used on the event loop."""

    def __init__(self) -> None:
        super().__init__(BLOBS)
