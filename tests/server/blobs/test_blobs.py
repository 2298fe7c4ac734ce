from __future__ import annotations

import asyncio
import datetime as dt
import errno
import fcntl
import hashlib
import os
import resource
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from server.blobs import BlobStore, DiskBlobs, Incoming
from server.blobs.bucket import Bucket
from server.blobs.disk import file_lock
from server.blobs.s3 import S3Blobs
from shared.files import storage_errors
from shared.problems import DigestMismatch, NotFound, StorageUnavailable, TooLarge, Truncated
from tests.helpers.s3_service import S3Service

KIB, MIB = 1024, 1024 * 1024
LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FAR_AHEAD = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


class Place:
    """Where a store's blobs are, past the store."""

    def __init__(self, store: BlobStore, bucket: Bucket | None, age: Callable[[str], object]) -> None:
        self.store = store
        self.bucket = bucket
        self.age = age
        """Makes a blob old, by its digest."""

    def write(self, digest: str, data: bytes) -> None:
        if self.bucket is None:
            self.store.path(digest).write_bytes(data)
        else:
            self.bucket.write(f"{digest[:2]}/{digest}", data)

    def write_stranger(self, name: str) -> None:
        if self.bucket is None:
            (self.store.folder / name).parent.mkdir(exist_ok=True)
            (self.store.folder / name).write_bytes(b"x")
        else:
            self.bucket.write(name, b"x")

    def names(self) -> set[str]:
        """Everything that is stored."""
        if self.bucket is None:
            return set(files_in(self.store))
        return {found["path"] for found in self.bucket.list()}


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        disk = DiskBlobs(tmp_path / "blobs")
        return Place(disk, None, lambda digest: age(disk.path(digest)))
    service: S3Service = request.getfixturevalue("s3")
    address = service.make_bucket()
    bucket, lock = service.open(address), tmp_path / "blobs" / "lock"

    def hold(exclusive: bool) -> AbstractContextManager[None]:
        return file_lock(lock, exclusive=exclusive)

    store = S3Blobs(bucket, tmp_path / "blobs", hold, copied_bytes=16 * MIB)
    return Place(store, bucket, lambda digest: age(service.file(address, f"{digest[:2]}/{digest}")))


@pytest.fixture
def store(place: Place) -> BlobStore:
    return place.store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def pieces(data: bytes, size: int = 64 * KIB) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def receive(store: BlobStore, data: bytes, size: int = 64 * KIB, **options: Any) -> Incoming:
    return asyncio.run(store.receive(pieces(data, size), **{"max_bytes": 64 * MIB, **options}))


def put(store: BlobStore, data: bytes) -> str:
    incoming = receive(store, data)
    store.keep(incoming)
    return incoming.digest


def files_in(store: BlobStore) -> list[str]:
    """Everything but the lock, relative to the folder."""
    found = (path for path in store.folder.rglob("*") if path.is_file() and path.name != "lock")
    return sorted(str(path.relative_to(store.folder)) for path in found)


# ---------------------------------------------------------------- in and out


@pytest.mark.parametrize("length", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 17])
@pytest.mark.parametrize("size", [64 * KIB, 3 * MIB])
def test_a_body_comes_out_as_it_went_in(store: BlobStore, length: int, size: int) -> None:
    data = os.urandom(length)
    incoming = receive(store, data, size, expected=sha(data), announced_bytes=length)
    assert (incoming.digest, incoming.bytes) == (sha(data), length)
    store.keep(incoming)
    with store.open(sha(data)) as file:
        assert file.read() == data
    assert store.size(sha(data)) == length
    assert files_in(store) == [f"{sha(data)[:2]}/{sha(data)}"]


def test_a_blob_may_be_read_by_others(store: BlobStore) -> None:
    assert store.path(put(store, b"x")).stat().st_mode & 0o777 == 0o644


def test_keeping_twice_or_the_same_bytes_again_is_harmless(store: BlobStore) -> None:
    first, second = receive(store, b"same"), receive(store, b"same")
    for incoming in (first, first, second):
        store.keep(incoming)
    assert files_in(store) == [f"{first.digest[:2]}/{first.digest}"]


def test_a_discarded_body_leaves_nothing(store: BlobStore) -> None:
    incoming = receive(store, b"x")
    store.discard(incoming)
    store.discard(incoming)
    assert files_in(store) == []
    assert not store.exists(incoming.digest)


def test_discarding_after_keeping_leaves_the_blob(store: BlobStore) -> None:
    incoming = receive(store, b"x")
    store.keep(incoming)
    store.discard(incoming)
    assert store.exists(incoming.digest)


@pytest.mark.parametrize("given", [None, sha(b"model")])
def test_a_file_made_in_a_workspace_is_adopted(store: BlobStore, given: str | None) -> None:
    with store.workspace() as folder:
        (folder / "result").write_bytes(b"model")
        (folder / "left").write_bytes(b"behind")
        assert store.adopt(folder / "result", given) == sha(b"model")
    assert files_in(store) == [f"{sha(b'model')[:2]}/{sha(b'model')}"]


def test_what_is_not_there_is_not_found(store: BlobStore) -> None:
    nothing = sha(b"never sent")
    assert not store.exists(nothing)
    for ask in (store.open, store.size, store.verify):
        with pytest.raises(NotFound, match=nothing):
            ask(nothing)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "AB" * 32, "ab" * 32 + "\n", "ab" * 31, "\u0661" * 64]
)
def test_what_is_no_digest_never_becomes_a_path(store: BlobStore, name: str) -> None:
    with pytest.raises(NotFound, match="is not a SHA-256"):
        store.path(name)


# ---------------------------------------------------------------- refused bodies


@pytest.mark.parametrize("length", [100, 3 * MIB])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (lambda length: {"max_bytes": length - 1}, TooLarge),
        (lambda length: {"announced_bytes": length + 1}, Truncated),
        (lambda length: {"announced_bytes": length - 1}, DigestMismatch),
        (lambda length: {"expected": sha(b"another")}, DigestMismatch),
    ],
)
def test_a_wrong_body_is_refused_and_leaves_nothing(
    store: BlobStore, length: int, options: Callable[[int], dict[str, Any]], problem: type[Exception]
) -> None:
    with pytest.raises(problem) as caught:
        receive(store, b"x" * length, **options(length))
    assert type(caught.value) is problem
    assert files_in(store) == []


def test_an_announcement_that_is_too_large_is_refused_unread(store: BlobStore) -> None:
    read: list[bool] = []

    async def unreadable() -> AsyncIterator[bytes]:
        read.append(True)
        yield b""

    with pytest.raises(TooLarge, match="101 bytes or more, allowed are 100"):
        asyncio.run(store.receive(unreadable(), max_bytes=100, announced_bytes=101))
    assert read == []


class Gone(Exception):
    """As a web server raises it when the client has disconnected."""


@pytest.mark.parametrize("length", [10, 3 * MIB])
def test_a_disconnect_leaves_nothing(store: BlobStore, length: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for piece in pieces(b"x" * length):
            yield piece
        raise Gone

    with pytest.raises(Gone):
        asyncio.run(store.receive(broken(), max_bytes=64 * MIB))
    assert files_in(store) == []


@pytest.mark.parametrize("length", [10, 3 * MIB])
def test_a_cancellation_leaves_nothing(store: BlobStore, length: int) -> None:
    async def stalled(sent: asyncio.Event) -> AsyncIterator[bytes]:
        async for piece in pieces(b"x" * length):
            yield piece
        sent.set()
        await asyncio.Event().wait()

    async def cancelled() -> None:
        sent = asyncio.Event()
        receiving = asyncio.create_task(store.receive(stalled(sent), max_bytes=64 * MIB))
        await sent.wait()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert files_in(store) == []

    asyncio.run(cancelled())


@pytest.mark.parametrize("turns", range(12))
def test_a_cancellation_at_any_moment_leaves_nothing(store: BlobStore, turns: int) -> None:
    async def cancelled() -> None:
        body = pieces(b"x" * 3 * MIB, MIB)
        receiving = asyncio.create_task(store.receive(body, max_bytes=64 * MIB))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            store.discard(await receiving)  # it was faster
        assert files_in(store) == []

    asyncio.run(cancelled())


class LateExecutor(ThreadPoolExecutor):
    """The first call's thread starts, and then gets no processor before ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self._first = True

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        late, self._first = self._first, False

        def run() -> Any:
            if late:
                self.go.wait()
            return function(*arguments, **named)

        return super().submit(run)


def test_a_thread_that_comes_after_the_cancellation_makes_no_file(store: BlobStore) -> None:
    async def cancelled(executor: LateExecutor) -> None:
        asyncio.get_running_loop().set_default_executor(executor)
        receiving = asyncio.create_task(store.receive(pieces(b"x"), max_bytes=MIB))
        await asyncio.sleep(0.05)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        executor.go.set()

    executor = LateExecutor()
    asyncio.run(cancelled(executor))
    executor.shutdown()
    assert files_in(store) == []


# ---------------------------------------------------------------- cheap


def test_a_large_body_needs_little_memory(store: BlobStore) -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(512):
            yield bytes(64 * KIB)  # made anew, as a server does

    async def measured() -> int:
        tracemalloc.start()
        incoming = await store.receive(large(), max_bytes=64 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert incoming.bytes == 32 * MIB
        return peak

    assert asyncio.run(measured()) < 6 * MIB


class CountingExecutor(ThreadPoolExecutor):
    """Threads as always, and how often one was asked for."""

    hops = 0

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        self.hops += 1
        return super().submit(*arguments, **named)


@pytest.mark.parametrize(("length", "hops"), [(0, 1), (100, 1), (MIB - 1, 1), (4 * MIB, 5)])
def test_small_bodies_cost_one_thread_hop(store: BlobStore, length: int, hops: int) -> None:
    async def counted() -> int:
        executor = CountingExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        await store.receive(pieces(b"x" * length, KIB), max_bytes=64 * MIB)
        return executor.hops

    assert asyncio.run(counted()) == hops


# ---------------------------------------------------------------- the disk


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageUnavailable, match=str(tmp_path / "file" / "blobs")) as caught:
        DiskBlobs(tmp_path / "file" / "blobs")
    assert "choose another folder" in caught.value.hint


def test_a_disk_that_takes_no_more_leaves_nothing(store: BlobStore) -> None:
    with file_size_limit(MIB), pytest.raises(StorageUnavailable, match=str(store.folder)):
        receive(store, b"x" * 3 * MIB)
    assert files_in(store) == []


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The nearest to a full disk that needs no file system of its own: the kernel refuses longer files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="No space left") as caught, storage_errors(tmp_path):
        Path("/dev/full").write_bytes(b"x")
    assert str(tmp_path) in caught.value.detail
    assert "free space" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "right to write"),
        (errno.EROFS, "mount it for writing"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EIO, "system's log"),
    ],
)
def test_each_refusal_of_the_disk_says_what_to_do(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(StorageUnavailable, match=os.strerror(number)) as caught, storage_errors(tmp_path):
        raise OSError(number, os.strerror(number))  # root, as CI is, cannot be refused for real
    assert advice in caught.value.hint


def test_readiness_notices_a_folder_that_went_away(store: BlobStore) -> None:
    store.check()
    assert files_in(store) == []
    (store.folder / "incoming").rmdir()
    with pytest.raises(StorageUnavailable, match=str(store.folder)):
        store.check()


# ---------------------------------------------------------------- damage and leftovers


@pytest.mark.parametrize("damage", [b"", b"mode", b"model+", b"mudel"])
def test_damage_is_noticed_and_mended_by_sending_again(place: Place, damage: bytes) -> None:
    store = place.store
    digest = put(store, b"model")
    store.verify(digest)
    place.write(digest, damage)
    with pytest.raises(StorageUnavailable, match=f"{digest} in .* is damaged: its {len(damage)} bytes"):
        store.verify(digest)
    put(store, b"model")
    store.verify(digest)


def test_only_what_is_old_and_unreferenced_is_collected(place: Place) -> None:
    store = place.store
    referenced, old, young = (put(store, data) for data in (b"referenced", b"old", b"young"))
    for digest in (referenced, old):
        place.age(digest)
    assert store.collect({referenced}, LONG_AGO) == [old]
    assert [store.exists(digest) for digest in (referenced, old, young)] == [True, False, True]
    assert store.collect([referenced], LONG_AGO) == []


def age(path: Path) -> None:
    before = LONG_AGO.timestamp() - 1
    os.utime(path, (before, before))


def test_an_upload_again_protects_an_old_blob(place: Place) -> None:
    store = place.store
    digest = put(store, b"model")
    place.age(digest)
    incoming = receive(store, b"model")
    age(incoming.path)  # it waited long for its validation
    store.keep(incoming)
    assert store.collect([], LONG_AGO) == []


def test_unneeded_blobs_are_removed_unless_put_again(place: Place) -> None:
    store = place.store
    old, young, absent = put(store, b"old"), put(store, b"young"), "0" * 64
    place.age(old)
    told: list[str] = []
    assert store.remove([young, old, absent], LONG_AGO, told.extend) == [absent, old] == told
    assert [store.exists(digest) for digest in (old, young)] == [False, True]


def test_a_removed_blob_can_be_put_only_after_it_was_forgotten(place: Place) -> None:
    store = place.store
    digest = put(store, b"model")
    place.age(digest)
    again: list[Future[str]] = []

    def forget(digests: Sequence[str]) -> None:
        assert list(digests) == [digest]
        again.append(threads.submit(put, store, b"model"))
        with pytest.raises(TimeoutError):
            again[0].result(timeout=0.3)

    with ThreadPoolExecutor() as threads:
        assert store.remove([digest], LONG_AGO, forget) == [digest]
        assert again[0].result(timeout=10) == digest
    assert store.exists(digest)


def test_a_removal_that_was_interrupted_is_told_again(place: Place) -> None:
    store = place.store
    digest = put(store, b"model")
    place.age(digest)

    def fail(_digests: Sequence[str]) -> None:
        raise StorageUnavailable("the database is away")

    with pytest.raises(StorageUnavailable):
        store.remove([digest], LONG_AGO, fail)
    told: list[str] = []
    store.remove([digest], LONG_AGO, told.extend)
    assert told == [digest]


def test_an_old_blob_that_is_about_to_be_named_is_renewed(place: Place) -> None:
    store = place.store
    digest = put(store, b"model")
    place.age(digest)
    assert store.renew(digest)
    assert store.collect([], LONG_AGO) == []
    assert not store.renew("0" * 64)


def test_what_a_crash_left_is_collected(store: BlobStore) -> None:
    old, young = receive(store, b"old"), receive(store, b"young")
    age(old.path)
    with store.workspace() as abandoned, store.workspace() as used:
        (abandoned / "result").write_bytes(b"x")
        (used / "result").write_bytes(b"x")
        for path in (abandoned / "result", abandoned, used):
            age(path)
        assert store.collect([], LONG_AGO) == []
        assert not old.path.exists()
        assert not abandoned.exists()
        assert young.path.exists()
        assert (used / "result").exists()  # written to a moment ago


def test_other_peoples_files_are_left_alone(place: Place) -> None:
    strange = {"ab/README", "note", f"ab/{'AB' * 32}", f"cd/{'ab' * 32}"}
    for name in strange:
        place.write_stranger(name)
    assert place.store.collect([], FAR_AHEAD) == []
    assert place.names() == strange


def test_collecting_waits_for_a_blob_that_is_being_put(place: Place) -> None:
    store = place.store
    digest = put(store, b"model")
    place.age(digest)
    with lock_of_another_process(store, fcntl.LOCK_SH) as release, ThreadPoolExecutor() as threads:
        collecting = threads.submit(store.collect, [], LONG_AGO)
        with pytest.raises(TimeoutError):
            collecting.result(timeout=0.3)
        place.write(digest, b"model")  # the other process has put the same bytes again
        release()
        assert collecting.result(timeout=10) == []


def test_keeping_waits_for_a_blob_that_is_being_deleted(store: BlobStore) -> None:
    incoming = receive(store, b"model")
    with lock_of_another_process(store, fcntl.LOCK_EX) as release, ThreadPoolExecutor() as threads:
        keeping = threads.submit(store.keep, incoming)
        with pytest.raises(TimeoutError):
            keeping.result(timeout=0.3)
        release()
        keeping.result(timeout=10)
    assert store.exists(incoming.digest)


@contextmanager
def lock_of_another_process(store: BlobStore, kind: int) -> Iterator[Callable[[], None]]:
    """A lock belongs to an open file, so a second one behaves as another process's; yields its release."""
    with (store.folder / "lock").open("a") as lock:
        fcntl.flock(lock, kind)
        try:
            yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
