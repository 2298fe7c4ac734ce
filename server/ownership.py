"""A SQLite database belongs to one process, which holds a lock beside it for as long as it lives.

The lock is the operating system's (``flock``): it goes with the process, however that ends. The file says
who holds it.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.files import MODE, storage_errors
from shared.problems import StorageUnavailable

__all__ = ["LOCK_SUFFIX", "holding", "owning"]

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

    def refuse(owner: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"the database {path} belongs to another process: {owner or 'another process'}",
            hint="SQLite serves one coordinator. Stop that process first; several need PostgreSQL.",
        )

    told = f"{what}, process {os.getpid()} on {socket.gethostname()}, since {now:%Y-%m-%d %H:%M:%S} UTC"
    with holding(Path(f"{path}{LOCK_SUFFIX}"), told, refuse):
        yield


@contextmanager
def holding(lock: Path, told: str, refuse: Callable[[str], StorageUnavailable]) -> Iterator[None]:
    """This process alone has the lock during the block; the file says ``told`` to others.

    Raises:
        StorageUnavailable: of ``refuse``, given what the holder told; or the lock cannot be written.
    """
    with storage_errors(lock.parent):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        with storage_errors(lock.parent):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise refuse(os.pread(handle, 500, 0).decode(errors="replace")) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, told.encode(), 0)
        yield
    finally:
        os.close(handle)  # releases it
