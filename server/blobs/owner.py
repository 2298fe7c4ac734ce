"""Which database the blobs belong to: written beside them once, compared at every start."""

from __future__ import annotations

from server.blobs.store import BlobStore
from shared.problems import InvalidConfiguration

__all__ = ["check_owner"]


def check_owner(blobs: BlobStore, database_id: str, *, recorded_blobs: int) -> None:
    """Mark a new folder as this database's, or see that it is.

    ``recorded_blobs``: how many files the database has recorded. It misses them if the folder is empty.

    Raises:
        InvalidConfiguration: the folder is another database's, or an empty one in the place of this one's.
        StorageUnavailable: it cannot be read or written.
    """
    owner = blobs.read_owner()
    if owner is None:
        if recorded_blobs and not blobs.has_blobs():
            raise InvalidConfiguration(
                f"the blob folder {blobs} is empty, but the database has recorded {recorded_blobs} files",
                hint="Mount the volume that holds them, choose its --data-folder or FEDDISCO_BLOB_STORE, or "
                "restore a backup. All coordinators of one database share one folder, or one bucket.",
            )
        blobs.write_owner(database_id, overwrite=False)
        owner = blobs.read_owner()  # another process may have been faster
    if owner != database_id:
        raise InvalidConfiguration(
            f"the blob folder {blobs} belongs to database {owner}, not to this one ({database_id})",
            hint="Choose the --data-folder (or FEDDISCO_BLOB_STORE) and the --database-url that belong "
            f"together. If they do, delete {blobs}/database-id.",
        )
