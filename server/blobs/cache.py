"""The small blobs that were read last: all clients of a round fetch the same new model at the same time."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BLOBS", "BLOB_BYTES", "BlobCache"]

BLOBS = 16
BLOB_BYTES = 2**20


class BlobCache:
    """Bytes by digest. They cannot change, so a cached copy is never wrong. Used on the event loop."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, digest: str, data: bytes) -> None:
        self._bytes[digest] = data
        while len(self._bytes) > BLOBS:
            self._bytes.popitem(last=False)

    def get(self, digest: str) -> bytes | None:
        if (data := self._bytes.get(digest)) is not None:
            self._bytes.move_to_end(digest)
        return data
