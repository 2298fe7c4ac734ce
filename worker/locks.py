"""What workers in slots of one state folder do one after the other."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.files import storage_errors

__all__ = ["locked"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The block is entered by one process after the other; ``path`` is the lock, a file of its own.

    Raises :class:`StorageUnavailable`, also for what the system refuses in the block.
    """
    with storage_errors(path.parent), path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
