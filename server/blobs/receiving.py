"""A body on its way to the disk: off the event loop, in constant memory, gone after any failure."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from shared.files import MODE, PARTIAL, storage_errors
from shared.problems import DigestMismatch, TooLarge, Truncated

__all__ = ["Incoming", "receive", "take"]

PIECE_BYTES = 1024 * 1024
"""Gathered before a thread writes it: a smaller body costs one hop, a larger one two pieces of memory."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A body received whole, under a temporary name; ``digest`` is its SHA-256, hexadecimal."""

    path: Path
    digest: str
    bytes: int


async def receive(
    folder: Path,
    chunks: AsyncIterator[bytes],
    *,
    max_bytes: int,
    expected: str | None = None,
    announced_bytes: int | None = None,
) -> Incoming:
    """Stream ``chunks`` into a temporary file in ``folder``; nothing is left there after any failure.

    ``expected`` is the announced SHA-256, ``announced_bytes`` the Content-Length.
    Raises TooLarge, Truncated, DigestMismatch, StorageUnavailable, and whatever ``chunks`` raises.
    """
    _check_size(announced_bytes or 0, max_bytes)
    sink = _Sink(folder)
    try:
        last = await _drain(chunks, sink, max_bytes)
        return await asyncio.to_thread(sink.finish, last, expected, announced_bytes)
    except BaseException:
        # shielded: a second cancellation must not keep the file alive
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(sink.discard)))
        raise


def take(folder: Path, body: bytes, *, max_bytes: int, expected: str, announced_bytes: int) -> Incoming:
    """What ``receive`` does, for a small body that is in memory already. Blocks on the disk."""
    _check_size(max(announced_bytes, len(body)), max_bytes)
    sink = _Sink(folder)
    try:
        return sink.finish([body], expected, announced_bytes)
    except BaseException:
        sink.discard()
        raise


async def _drain(chunks: AsyncIterator[bytes], sink: _Sink, max_bytes: int) -> list[bytes]:
    """Write all whole pieces, each while the next one arrives; returns what is left of the body."""
    gathered: list[bytes] = []
    gathered_bytes = total = 0
    writing: asyncio.Future[None] | None = None
    async for chunk in chunks:
        total += len(chunk)
        _check_size(total, max_bytes)
        gathered.append(chunk)
        gathered_bytes += len(chunk)
        if gathered_bytes >= PIECE_BYTES:
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(asyncio.to_thread(sink.write, gathered))
            writing.add_done_callback(_notice)
            gathered, gathered_bytes = [], 0
    if writing is not None:
        await writing
    return gathered


def _notice(writing: asyncio.Future[None]) -> None:
    """Asyncio would complain about an error nobody looked at, when the client's disconnect came first."""
    if not writing.cancelled():
        writing.exception()


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise TooLarge(
            f"the body has {size} bytes or more, allowed are {max_bytes}",
            hint="Was another model trained than the run's?",
            allowed_bytes=max_bytes,
        )


class _Sink:
    """The temporary file, made at the first write. Its methods run in threads, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._handle = -1
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._lock = threading.Lock()
        self._discarded = False

    def write(self, pieces: list[bytes]) -> None:
        with self._lock, storage_errors(self._folder):
            self._append(pieces)

    def finish(self, pieces: list[bytes], expected: str | None, announced_bytes: int | None) -> Incoming:
        with self._lock, storage_errors(self._folder):
            path = self._append(pieces)
            self._close()
        digest = self._hash.hexdigest()
        _check_announced(self._bytes, announced_bytes)
        if expected is not None and digest != expected:
            raise DigestMismatch(
                f"the body's SHA-256 is {digest}, announced was {expected}",
                hint="The upload was damaged on its way, or the digest is of another file: send it again.",
                expected=expected,
                received=digest,
            )
        return Incoming(path, digest, self._bytes)

    def discard(self) -> None:
        """Close and delete; waits for a write that is under way in another thread."""
        with self._lock, storage_errors(self._folder):
            self._discarded = True
            self._close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def _append(self, pieces: list[bytes]) -> Path:
        if self._discarded:  # cancelled while this call waited for its thread: nobody hears the answer
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if self._path is None:
            self._handle, name = tempfile.mkstemp(dir=self._folder, suffix=PARTIAL)
            self._path = Path(name)
            os.fchmod(self._handle, MODE)
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._hash.update(data)
        self._bytes += len(data)
        while data:
            data = data[os.write(self._handle, data) :]
        return self._path

    def _close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)


def _check_announced(received: int, announced: int | None) -> None:
    if announced is None or received == announced:
        return
    kind = Truncated if received < announced else DigestMismatch
    raise kind(
        f"{received} bytes came, announced were {announced}",
        hint="The connection broke or the Content-Length is wrong: send the file again.",
    )
