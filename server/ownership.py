"""A SQLite database belongs to one process, which holds a lock beside it for as long as it lives.

The lock is the operating system's (``flock``): it goes with the process, however that ends. The file says
who holds it.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.files import MODE, storage_errors
from shared.problems import StorageUnavailable

__all__ = ["LOCK_SUFFIX", "owning"]

LOCK_SUFFIX = ".lock"


@contextmanager
def owning(database: Path | None, what: str, now: dt.datetime) -> Iterator[None]:
    """This process alone works with the SQLite file during the block. ``None`` (PostgreSQL): nothing to do.

    ``what``: how this process is called where another one is refused because of it.

    Raises:
        StorageUnavailable: another process has it, which is named; or the lock cannot be written.
    """
    if database is None:
        yield
        return
    path = database.resolve()  # one lock, by whatever link the database is named
    with storage_errors(path.parent):
        handle = os.open(f"{path}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        _lock(handle, path)
        with storage_errors(path.parent):
            told = (
                f"{what}, process {os.getpid()} on {socket.gethostname()}, since {now:%Y-%m-%d %H:%M:%S} UTC"
            )
            os.ftruncate(handle, 0)
            os.pwrite(handle, told.encode(), 0)
        yield
    finally:
        os.close(handle)  # releases it


def _lock(handle: int, path: Path) -> None:
    with storage_errors(path.parent):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 500, 0).decode(errors="replace") or "another process"
            raise StorageUnavailable(
                f"the database {path} belongs to another process: {owner}",
                hint="SQLite serves one coordinator. Stop that process first; several need PostgreSQL.",
            ) from None
