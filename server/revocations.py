"""Revocations, kept beside the database as well: one that is restored knows nothing of the later ones.

A file with one JSON object a line: the SHA-256 of a token that must never be accepted again. It is applied
at each start.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from pathlib import Path

from shared.files import PRIVATE, storage_errors, sync_folder
from shared.problems import StorageUnavailable

__all__ = ["FILE", "Revocations"]

FILE = "revocations.jsonl"

log = logging.getLogger("feddisco")


class Revocations:
    """The list in one data folder; several processes may add to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, token_hash: str, what: str, now: dt.datetime) -> None:
        """``what``: client or join code. A disk that refuses keeps no token alive: it is only logged."""
        line = json.dumps({"token_hash": token_hash, "what": what, "at": now.isoformat()}) + "\n"
        try:
            with storage_errors(self.path.parent):
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
                try:
                    os.write(handle, line.encode())
                    os.fsync(handle)
                finally:
                    os.close(handle)
                sync_folder(self.path.parent)
        except StorageUnavailable as fault:
            log.error("a revocation could not be noted in %s: %s", self.path, fault)

    def read(self) -> set[str]:
        """Hashes of all tokens in it; a line that was cut by a crash is passed over."""
        with storage_errors(self.path.parent):
            try:
                lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            except FileNotFoundError:
                return set()
        return {found for line in lines if (found := _token_hash(line)) is not None}


def _token_hash(line: str) -> str | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    value = found.get("token_hash") if isinstance(found, dict) else None
    return value if isinstance(value, str) else None
