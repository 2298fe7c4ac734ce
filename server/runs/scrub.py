"""The scrub: stored files are read again now and then, so that damage is found while it can be mended."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib

from server.background import repeat
from server.blobs import BlobStore
from server.blobs.integrity import DAMAGED, describe_os_error
from server.clock import Clock
from server.database.store import Store
from server.monitoring.metrics import Telemetry
from server.runs.blob_faults import BlobFaults
from server.threads import Threads

__all__ = ["Scrub"]

LOOK_SECONDS = 60.0
PIECE_BYTES = 2**22


class Scrub:
    """Reads the file that was not read for longest, in pieces with pauses; of several coordinators, one each.

    ``every``: seconds after which a file is read again; 0: never. ``rate``: bytes in a second.
    """

    def __init__(
        self,
        *,
        store: Store,
        blobs: BlobStore,
        faults: BlobFaults,
        threads: Threads,
        telemetry: Telemetry,
        clock: Clock,
        every: float,
        rate: int,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._faults = faults
        self._threads = threads
        self._telemetry = telemetry
        self._clock = clock
        self._every = dt.timedelta(seconds=every)
        self._rate = rate

    async def run(self) -> None:
        """Until cancelled."""
        await repeat(LOOK_SECONDS, self.look, "cannot read stored files again now")

    async def look(self) -> None:
        """See whether files at fault are there again, then read all that are due."""
        await self._threads.run_long(self._look_at_faulty)
        needed = await self._threads.run(self._store.referenced_blobs) if self._every else set()
        while self._every and (digest := await self._threads.run(self._claim)) is not None:
            if digest in needed:  # what nothing refers to is collected
                await self._read(digest)

    def _look_at_faulty(self) -> None:
        for digest in self._store.faulty_blobs():
            self._faults.find(digest)

    def _claim(self) -> str | None:
        now = self._clock()
        return self._store.claim_unchecked_blob(now - self._every, now)

    async def _read(self, digest: str) -> None:
        try:
            actual = await self._hash(digest)
            fault = None if actual == digest else DAMAGED
        except OSError as error:
            fault = describe_os_error(error)
        await self._threads.run(self._faults.note, digest, fault)

    async def _hash(self, digest: str) -> str:
        hasher, pieces = hashlib.sha256(), self._blobs.read_anew(digest, PIECE_BYTES)
        while piece := await self._threads.run_long(next, pieces, b""):
            hasher.update(piece)
            self._telemetry.scrubbed.inc(len(piece))
            await asyncio.sleep(len(piece) / self._rate)
        return hasher.hexdigest()
