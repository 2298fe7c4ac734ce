"""The blob store that the settings name, and the lists that lie beside the blobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from server.blobs.disk import DiskBlobs, file_lock
from server.blobs.store import BlobStore
from server.settings import Settings
from shared.json_lines import FileLines, Lines

if TYPE_CHECKING:
    from server.database.store import Store

__all__ = ["open_blobs", "open_lines"]


def open_blobs(settings: Settings, store: Store, *, create: bool = True) -> BlobStore:
    """In the data folder, or in a bucket. Without ``create`` nothing is made: for reading only.

    Raises:
        InvalidConfiguration: the bucket's settings cannot be used, or the package for it is not installed.
        StorageUnavailable: the folder cannot be made.
    """
    if settings.blob_store is None:
        return DiskBlobs(settings.data_folder / "blobs", create=create)
    from server.blobs.bucket import Bucket
    from server.blobs.s3 import S3Blobs

    folder = settings.data_folder / "blob-copies"
    return S3Blobs(
        Bucket(settings.blob_store, settings),
        folder,
        store.lock_files if settings.on_postgres else _LocalLock(folder / "lock"),
        copied_bytes=settings.copied_blob_bytes,
        create=create,
    )


def open_lines(settings: Settings, file: str) -> Lines:
    """A list of which all coordinators know, by the name of its file in a data folder."""
    if settings.blob_store is None:
        return FileLines(settings.data_folder / file)
    from server.blobs.bucket import Bucket
    from server.blobs.bucket_lines import BucketLines

    return BucketLines(Bucket(settings.blob_store, settings), file)


class _LocalLock:
    """SQLite's coordinator is one process: its bucket has no other user than those of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def __call__(self, exclusive: bool) -> Iterator[None]:
        with file_lock(self._path, exclusive=exclusive):
            yield
