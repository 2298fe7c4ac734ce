"""Which blobs a client may download without asking the database: those of its newest assignment."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

__all__ = ["GRANT_SECONDS", "DownloadGrants"]

GRANT_SECONDS = 10.0


class DownloadGrants:
    """The blobs of each client's newest assignment.

    It only saves a query: a client without a grant is looked up in the database. A revoked client is
    refused before this is asked; one that has left may go on downloading for :data:`GRANT_SECONDS`. All
    methods run on the event loop.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._granted: dict[str, tuple[float, Collection[str | None]]] = {}  # by client: until when, digests

    def grant(self, client: str, digests: Collection[str | None]) -> None:
        self._granted[client] = self._monotonic() + GRANT_SECONDS, digests

    def covers(self, client: str, digest: str) -> bool:
        until, digests = self._granted.get(client, (0.0, ()))
        return self._monotonic() < until and digest in digests
