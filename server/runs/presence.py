"""When clients were last seen: collected in memory, written in one transaction every few seconds."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable

from server.database.store import Store
from server.threads import Threads
from shared.problems import ServiceFault

__all__ = ["Presence"]

FLUSH_SECONDS = 5.0
CHECK_EVERY = dt.timedelta(seconds=5)
_LONG_AGO = dt.datetime.min.replace(tzinfo=dt.UTC)
log = logging.getLogger("feddisco")


class Presence:
    """A poll costs a dictionary entry, not a write transaction with its wait for the disk."""

    def __init__(self, store: Store, threads: Threads, clock: Callable[[], dt.datetime]) -> None:
        self._store = store
        self._threads = threads
        self._clock = clock
        self._seen: dict[str, dt.datetime] = {}
        self._checked: dict[str, dt.datetime] = {}

    def note(self, client: str) -> bool:
        """The client polls. Whether to check, once in a few seconds, if it counts as away in some run."""
        now = self._clock()
        self._seen[client] = now
        if now - self._checked.get(client, _LONG_AGO) < CHECK_EVERY:
            return False
        self._checked[client] = now
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
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self._threads.run(self.flush)
            except ServiceFault as fault:
                log.warning("cannot note who was seen: %s", fault.detail)
