"""Immutable files named by their SHA-256: models, updates, server state."""

from server.blobs.disk import DiskBlobs
from server.blobs.opening import open_blobs, open_lines
from server.blobs.receiving import Incoming
from server.blobs.store import BlobStore

__all__ = ["BlobStore", "DiskBlobs", "Incoming", "open_blobs", "open_lines"]
