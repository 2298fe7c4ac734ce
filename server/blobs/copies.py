"""Local copies of blobs that lie elsewhere: bounded in bytes, the least recently used go first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from server.blobs.disk import identify_file
from server.blobs.store import Identity, is_digest
from shared.wire.digests import digest_of

__all__ = ["Copies"]


class Copies:
    """Files by digest below ``folder``, ``most_bytes`` together. Used from several threads.

    A copy may vanish at any time, since another process may share the folder: whoever uses one takes a hard
    link of it first. Copies that an earlier process left are read once before they are believed.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._total = 0
        self._hashed: dict[str, Identity] = {}
        for path in sorted(self._find(), key=_last_used):
            self._note(path.name, path.stat().st_size)
        self._shrink()

    def take(self, digest: str, link: Path) -> bool:
        """Make ``link`` an intact copy of the blob, for the caller to delete. Whether there is one."""
        path = self._path(digest)
        try:
            with self._lock:
                os.link(path, link)
                is_hashed = self._hashed.get(digest) == identify_file(link)
            is_intact = is_hashed or digest_of(link) == digest
            with self._lock:
                os.utime(link)  # used now; and collect() leaves the link alone
                if is_intact:
                    self._hashed[digest] = identify_file(link)
                    self._note(digest, link.stat().st_size)
        except FileNotFoundError:
            self.drop(digest)
            return False
        if not is_intact:
            link.unlink()
            self.drop(digest)
        return is_intact

    def add(self, source: Path, digest: str) -> None:
        """Move a file of these bytes in, unless it is larger than all copies may be."""
        size = source.stat().st_size
        if size > self._most_bytes:
            return
        path = self._path(digest)
        path.parent.mkdir(exist_ok=True)
        with self._lock:
            os.replace(source, path)
            self._hashed[digest] = identify_file(path)
            self._note(digest, size)
            self._shrink()

    def drop(self, digest: str) -> None:
        """The copy is damaged, or no longer wanted."""
        with self._lock:
            self._total -= self._sizes.pop(digest, 0)
            self._hashed.pop(digest, None)
            self._path(digest).unlink(missing_ok=True)

    def keep_only(self, digests: Container[str]) -> None:
        """Drop all other copies; one that is made meanwhile may go with them, and is fetched again."""
        for path in self._find():
            if path.name not in digests:
                self.drop(path.name)

    def _find(self) -> list[Path]:
        """Also copies that another process with this folder has made."""
        return [path for path in self._folder.glob("[0-9a-f][0-9a-f]/*") if is_digest(path.name)]

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _note(self, digest: str, size: int) -> None:
        self._total += size - self._sizes.pop(digest, 0)
        self._sizes[digest] = size

    def _shrink(self) -> None:
        while self._total > self._most_bytes:
            digest, size = self._sizes.popitem(last=False)
            self._total -= size
            self._hashed.pop(digest, None)
            self._path(digest).unlink(missing_ok=True)


def _last_used(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
