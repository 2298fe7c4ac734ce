"""Which blobs a client may download without asking the database: those of its newest assignment."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from cachetools import TTLCache

__all__ = ["GRANT_SECONDS", "DownloadGrants"]

GRANT_SECONDS = 10.0
CLIENTS = 100_000


class DownloadGrants:
    """The blobs of each client's newest assignment.

    It only saves a query: a client without a grant is looked up in the database. A revoked client is
    refused before this is asked; one that has left may go on downloading for :data:`GRANT_SECONDS`. All
    methods run on the event loop.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._granted: TTLCache[str, Collection[str | None]] = TTLCache(
            CLIENTS, GRANT_SECONDS, timer=monotonic
        )

    def grant(self, client: str, digests: Collection[str | None]) -> None:
        self._granted[client] = digests

    def covers(self, client: str, digest: str) -> bool:
        return digest in self._granted.get(client, ())
