"""Revocations, kept beside the database as well: one that is restored knows nothing of the later ones.

A list of JSON objects, each with the SHA-256 of a token that must never be accepted again. It is applied at
each start.
"""

from __future__ import annotations

import datetime as dt
import logging

from shared.json_lines import Lines
from shared.problems import StorageUnavailable

__all__ = ["FILE", "Revocations"]

FILE = "revocations.jsonl"

log = logging.getLogger("feddisco")


class Revocations:
    """The list of one installation; several processes may add to it."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def add(self, token_hash: str, what: str, now: dt.datetime) -> None:
        """``what``: client or join code. A disk that refuses keeps no token alive: it is only logged."""
        try:
            self._lines.append({"token_hash": token_hash, "what": what, "at": now.isoformat()})
        except StorageUnavailable as fault:
            log.error("a revocation could not be noted in %s: %s", self._lines, fault)

    def read(self) -> set[str]:
        """Hashes of all tokens in it."""
        hashes = (entry.get("token_hash") for entry in self._lines.read())
        return {found for found in hashes if isinstance(found, str)}
