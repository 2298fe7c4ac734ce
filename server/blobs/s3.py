"""Blobs in a bucket, which coordinators without a shared disk have in common.

::

    PREFIX/ab/abcdef...    a blob
    PREFIX/database-id     whose the blobs are

Below ``folder`` on this machine are copies of those that were used last (``copies``), and what is received.
The bucket has to be consistent: what was written is read at once by everybody, as S3 promises.

A bucket has no lock of its own, so the coordinators' database lends one. It is held for as long as files are
deleted, and by whoever has just written one for a look whether it is still there: so what is deleted between
somebody's writing and his commit is written again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from server.blobs.bucket import Bucket
from server.blobs.copies import Copies
from server.blobs.disk import MARK
from server.blobs.store import BATCH, BlobStore, Identity, is_digest
from shared.files import PARTIAL
from shared.problems import StorageUnavailable

__all__ = ["Lock", "S3Blobs"]

Lock = Callable[[bool], AbstractContextManager[None]]
"""Called with whether it shall be exclusive; held for the block, against all who use the bucket."""

FETCHING = 16
_PROBE = "probe"


class S3Blobs(BlobStore):
    """``folder``: for copies and for what is received; ``copied_bytes``: how much copies may take."""

    def __init__(
        self, bucket: Bucket, folder: Path, lock: Lock, *, copied_bytes: int, create: bool = True
    ) -> None:
        super().__init__(folder, create=create)
        self._bucket = bucket
        self._lock = lock
        self._fetching = [threading.Lock() for _ in range(FETCHING)]
        with self._storage_errors():
            self._copies = Copies(folder, copied_bytes)
            self._incoming.mkdir(parents=True, exist_ok=True)  # reading makes copies, too

    def __str__(self) -> str:
        return str(self._bucket)

    # ------------------------------------------------------------ out

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        link = self._link_copy(digest)
        try:
            yield link
        finally:
            link.unlink(missing_ok=True)

    def _link_copy(self, digest: str) -> Path:
        self.path(digest)  # a digest
        link = self._incoming / f"{secrets.token_hex(8)}{PARTIAL}"
        with self._found(digest):
            if self._copies.take(digest, link):
                return link
            # those who ask for the same file at the same moment wait for the first, who fetches it
            with self._fetching[int(digest[:2], 16) % FETCHING]:
                if self._copies.take(digest, link):
                    return link
                path, actual = self._fetch(digest)
                if actual != digest:
                    path.unlink()
                    raise StorageUnavailable(
                        f"blob {digest} in {self} is damaged: its bytes have the SHA-256 {actual}",
                        hint="Restore the file from a backup, or upload it again.",
                        public=f"the stored file {digest} is damaged",
                    )
                os.link(path, link)
                self._copies.add(path, digest)
                path.unlink(missing_ok=True)  # it was too large to keep
        return link

    def _fetch(self, digest: str) -> tuple[Path, str]:
        """A new local file with the stored bytes, and their SHA-256."""
        hasher = hashlib.sha256()
        with self._storage_errors():
            handle, name = tempfile.mkstemp(dir=self._incoming, suffix=PARTIAL)
        try:
            with open(handle, "wb") as file:
                for piece in self._bucket.read_pieces(_key(digest)):
                    hasher.update(piece)
                    file.write(piece)
        except BaseException:
            os.unlink(name)
            raise
        return Path(name), hasher.hexdigest()

    def exists(self, digest: str) -> bool:
        self.path(digest)
        return self._is_there(digest)

    def size(self, digest: str) -> int:
        self.path(digest)
        with self._found(digest):
            return self._bucket.head(_key(digest))["size"]

    # ------------------------------------------------------------ care

    def identify(self, digest: str) -> Identity:
        found = self._bucket.head(_key(digest))
        return found["e_tag"] or found["last_modified"], found["size"]

    def hash(self, digest: str) -> str:
        path, actual = self._fetch(digest)
        if actual == digest:
            self._copies.add(path, digest)
        path.unlink(missing_ok=True)
        return actual

    def read_anew(self, digest: str, piece_bytes: int) -> Iterator[bytes]:
        return self._bucket.read_pieces(_key(digest), piece_bytes)

    def collect(self, referenced: Iterable[str], older_than: dt.datetime) -> list[str]:
        wanted = set(referenced)
        with self._storage_errors():
            self._collect_temporary(older_than.timestamp())
        stored = dict(self._list())
        with self._storage_errors():
            self._copies.keep_only(stored)  # another coordinator may have deleted the others
        candidates = [
            name for name, modified in stored.items() if modified < older_than and name not in wanted
        ]
        return self.remove(candidates, older_than, lambda _gone: None)

    def remove(
        self, digests: Iterable[str], older_than: dt.datetime, forget: Callable[[Sequence[str]], None]
    ) -> list[str]:
        chosen, gone = sorted(digests), list[str]()
        for start in range(0, len(chosen), BATCH):
            with self._lock(True):
                batch = [one for one in chosen[start : start + BATCH] if self._is_older(one, older_than)]
                self._bucket.delete([_key(digest) for digest in batch])
                forget(batch)
            with self._storage_errors():
                for digest in batch:
                    self._copies.drop(digest)
            gone += batch
        return gone

    def _is_older(self, digest: str, limit: dt.datetime) -> bool:
        """Or not there at all."""
        try:
            return self._bucket.head(_key(digest))["last_modified"] < limit
        except FileNotFoundError:
            return True

    def renew(self, digest: str) -> bool:
        """S3 refuses to copy an object to itself: it is written again."""
        if not self.exists(digest):
            return False
        with self.local(digest) as path:
            self._write(path, digest)
        return True

    def check(self) -> None:
        super().check()
        self._bucket.write(_PROBE, b"\0")

    # ------------------------------------------------------------ whose it is

    def read_owner(self) -> str | None:
        try:
            return self._bucket.read(MARK).decode("ascii", errors="replace").strip()
        except FileNotFoundError:
            return None

    def write_owner(self, database_id: str, *, overwrite: bool) -> None:
        write = self._bucket.write if overwrite else self._bucket.create
        write(MARK, f"{database_id}\n".encode())

    def has_blobs(self) -> bool:
        return next(self._list(), None) is not None

    # ------------------------------------------------------------ inside

    def _place(self, source: Path, digest: str) -> None:
        self.path(digest)
        self._write(source, digest)
        with self._storage_errors():
            self._copies.add(source, digest)

    def _write(self, source: Path, digest: str) -> None:
        """The service compares the SHA-256 of what it takes, and answers when that is durable."""
        self._bucket.write(_key(digest), source)
        with self._lock(False):
            if not self._is_there(digest):  # collected a moment ago
                self._bucket.write(_key(digest), source)

    def _is_there(self, digest: str) -> bool:
        try:
            self._bucket.head(_key(digest))
        except FileNotFoundError:
            return False
        return True

    def _list(self) -> Iterator[tuple[str, dt.datetime]]:
        for found in self._bucket.list():
            name = found["path"].rpartition("/")[2]
            if is_digest(name) and found["path"] == _key(name):
                yield name, found["last_modified"]


def _key(digest: str) -> str:
    return f"{digest[:2]}/{digest}"
