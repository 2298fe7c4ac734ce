"""Stored files that are missing or damaged: found where they are needed, told, mended by storing again."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence

from server.blobs.integrity import BlobIntegrity
from server.clock import Clock
from server.database.blobs import WantedUpdate
from server.database.store import Store

__all__ = ["BlobFaults"]

Listener = Callable[[Sequence[WantedUpdate], bool], None]

log = logging.getLogger("feddisco.blobs")


def _ignore(updates: Sequence[WantedUpdate], is_mended: bool) -> None:
    pass


class BlobFaults:
    """Knows since when which files are at fault. The database has the list, for pages and other processes.

    ``listener`` is told of updates of open rounds: that they are lost (False), or mended (True). Methods
    block on disk and database: call them on a thread.
    """

    def __init__(self, store: Store, integrity: BlobIntegrity, clock: Clock) -> None:
        self._store = store
        self._integrity = integrity
        self._clock = clock
        self._since: dict[str, tuple[float, dt.datetime]] = {}
        self.listener: Listener = _ignore

    def load(self) -> None:
        """What the database knows: since when, is not; the time begins anew with the process."""
        for digest in self._store.faulty_blobs():
            self._since[digest] = (self._clock.monotonic(), self._clock())

    def find(self, digest: str) -> str | None:
        """What is wrong with the stored file, None if nothing. The file is not read twice for nothing.

        Raises:
            StorageUnavailable: where the files are does not answer, which says nothing about this one.
        """
        fault = self._integrity.find_fault(digest)
        self.note(digest, fault)
        return fault

    def read_again(self, digest: str) -> str | None:
        """As ``find``, from the bytes that are there now, whatever this process remembers of the file."""
        self._integrity.forget(digest)
        return self.find(digest)

    def note(self, digest: str, fault: str | None) -> None:
        """What is wrong with the file, as it has just been read. Tells it if that is news."""
        if fault is None and digest in self._since:
            self.mend(digest)
        if fault is not None:  # perhaps without a change of the file: what was seen of it counts no more
            self._integrity.forget(digest)
        if fault is not None and digest not in self._since:
            log.error("the stored file %s %s", digest, fault)
            self._note(digest, fault)
            self._since[digest] = (self._clock.monotonic(), self._clock())

    def mend(self, digest: str) -> None:
        """The file has been stored again, or for the first time; another process may know a fault of it."""
        self._note(digest, None)
        if self._since.pop(digest, None) is not None:
            log.info("the stored file %s is intact again", digest)

    def since(self, digest: str) -> tuple[float, dt.datetime] | None:
        """For how many seconds this process has known of the fault, and from when on.

        None if it knows of none: another thread may have stored the file again since its fault was found.
        """
        if (found := self._since.get(digest)) is None:
            return None
        then, at = found
        return self._clock.monotonic() - then, at

    def _note(self, digest: str, fault: str | None) -> None:
        wanted = self._store.note_blob_fault(digest, fault, self._clock())
        if wanted:
            self.listener(wanted, fault is None)
