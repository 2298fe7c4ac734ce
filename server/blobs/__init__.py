"""Immutable files named by their SHA-256: models, updates, server state."""

from server.blobs.receiving import Incoming
from server.blobs.store import BlobStore

__all__ = ["BlobStore", "Incoming"]
