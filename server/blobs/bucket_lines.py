"""A list of JSON objects in a bucket: an object an entry, since a bucket appends to nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from server.blobs.bucket import Bucket
from server.clock import utc_now
from shared.json_lines import format_line, parse_line

__all__ = ["BucketLines"]


class BucketLines:
    """:class:`shared.json_lines.Lines` below one name; entries are in the order of the writers' clocks."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket = bucket
        self._name = name

    def __str__(self) -> str:
        return f"{self._bucket}/{self._name}"

    def append(self, entry: Mapping[str, Any]) -> None:
        key = f"{self._name}/{utc_now():%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}"
        self._bucket.write(key, format_line(entry))

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """One that is killed meanwhile leaves old and new ones."""
        old = self._keys()
        for entry in entries:
            self.append(entry)
        self._bucket.delete(old)

    def read(self) -> list[dict[str, Any]]:
        texts = (self._bucket.read(key).decode("utf-8", errors="replace") for key in self._keys())
        return [found for text in texts if (found := parse_line(text)) is not None]

    def _keys(self) -> list[str]:
        return sorted(found["path"] for found in self._bucket.list(self._name))
