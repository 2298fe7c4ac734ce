"""What a round's downloads have in common: ten clients are told to fetch one new model, and fetch it at once.

Both memories spare work and grant nothing: who is not in them is looked up in the database and on the disk.
All methods run on the event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection

__all__ = ["BLOB_BYTES", "RecentBlobs", "Told"]

TOLD_SECONDS = 10.0
BLOBS = 16
BLOB_BYTES = 2**20


class Told:
    """Which blobs a client was just told to fetch: it needs no second permission to read them.

    A revoked client is refused before this is asked; one that has left may fetch for :data:`TOLD_SECONDS`
    what it was told to.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: dict[
            str, tuple[float, Collection[str | None]]
        ] = {}  # of the newest assignment, by client

    def note(self, client: str, digests: Collection[str | None]) -> None:
        self._told[client] = self._monotonic() + TOLD_SECONDS, digests

    def holds(self, client: str, digest: str) -> bool:
        until, digests = self._told.get(client, (0.0, ()))
        return self._monotonic() < until and digest in digests


class RecentBlobs:
    """The bytes of the small blobs that were read last; they cannot change, so they are never wrong."""

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
