"""Which database a blob folder belongs to: written into the folder once, compared at every start."""

from __future__ import annotations

from pathlib import Path

from shared.files import replace_file, storage_errors
from shared.problems import InvalidConfiguration

__all__ = ["MARK", "check_owner", "read_owner"]

MARK = "database-id"


def read_owner(folder: Path) -> str | None:
    """The id of the database that the folder's blobs belong to; None if it was never said."""
    with storage_errors(folder):
        try:
            return (folder / MARK).read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None


def check_owner(folder: Path, database_id: str, *, recorded_blobs: int) -> None:
    """Mark a new folder as this database's, or see that it is.

    ``recorded_blobs``: how many files the database has recorded. It misses them if the folder is empty.

    Raises:
        InvalidConfiguration: the folder is another database's, or an empty one in the place of this one's.
        StorageUnavailable: it cannot be read or written.
    """
    owner = read_owner(folder)
    if owner is None:
        if recorded_blobs and not _has_blobs(folder):
            raise InvalidConfiguration(
                f"the blob folder {folder} is empty, but the database has recorded {recorded_blobs} files",
                hint="Mount the volume that holds them, choose its --data-folder, or restore a backup. All "
                "coordinators of one database share one folder.",
            )
        replace_file(folder / MARK, f"{database_id}\n".encode(), overwrite=False)
        owner = read_owner(folder)  # another process may have been faster
    if owner != database_id:
        raise InvalidConfiguration(
            f"the blob folder {folder} belongs to database {owner}, not to this one ({database_id})",
            hint="Choose the --data-folder and the --database-url that belong together. If they do, delete "
            f"{folder / MARK}.",
        )


def _has_blobs(folder: Path) -> bool:
    with storage_errors(folder):
        return next(folder.glob("[0-9a-f][0-9a-f]/*"), None) is not None
