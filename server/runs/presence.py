"""When clients were last seen: collected in memory, written in one transaction every few seconds."""

from __future__ import annotations

import datetime as dt

from cachetools import TTLCache

from server.background import repeat
from server.clock import Clock
from server.database.store import Store
from server.threads import Threads

__all__ = ["Presence"]

FLUSH_SECONDS = 5.0
CHECK_SECONDS = 5.0
CLIENTS = 100_000
"""That are remembered; of more, some are checked at each poll."""


class Presence:
    """A poll costs a dictionary entry, not a write transaction with its wait for the disk."""

    def __init__(self, store: Store, threads: Threads, clock: Clock) -> None:
        self._store = store
        self._threads = threads
        self._clock = clock
        self._seen: dict[str, dt.datetime] = {}
        self._checked: TTLCache[str, None] = TTLCache(CLIENTS, CHECK_SECONDS, timer=clock.monotonic)

    def note(self, client: str) -> bool:
        """The client polls, or tells how far it is.

        Returns whether to check, once in a few seconds, if it counts as away in some run.
        """
        self._seen[client] = self._clock()
        if client in self._checked:
            return False
        self._checked[client] = None
        return True

    def forget(self, client: str) -> None:
        """Check its enrolments again at its next poll: it was told that it is too late."""
        self._checked.pop(client, None)

    def flush(self) -> None:
        seen, self._seen = self._seen, {}
        if seen:
            self._store.mark_seen(seen)

    async def run(self) -> None:
        """Until cancelled."""
        await repeat(FLUSH_SECONDS, self._flush_on_thread, "cannot note who was seen")

    async def _flush_on_thread(self) -> None:
        await self._threads.run(self.flush)
