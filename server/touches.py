"""When clients were last seen: gathered in memory, written in one transaction every few seconds."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable

from server.database.store import Store
from shared.problems import ServiceFault

__all__ = ["Touches"]

FLUSH_SECONDS = 5.0
log = logging.getLogger("feddisco")


class Touches:
    """A poll costs a dictionary entry, not a write transaction with its wait for the disk."""

    def __init__(self, store: Store, clock: Callable[[], dt.datetime]) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[str, dt.datetime] = {}

    def note(self, client: str) -> None:
        self._seen[client] = self._clock()

    def flush(self) -> None:
        seen, self._seen = self._seen, {}
        if seen:
            self._store.touch(seen)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await asyncio.to_thread(self.flush)
            except ServiceFault as fault:
                log.warning("cannot note who was seen: %s", fault.detail)
