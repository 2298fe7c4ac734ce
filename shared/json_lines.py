"""Lists beside the database and at a site: one JSON object an entry, durable once it is added."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from shared.files import PRIVATE, replace_file, storage_errors, sync_folder

__all__ = ["FileLines", "Lines", "format_line", "parse_line"]


class Lines(Protocol):
    """Several processes may add to it. All raise StorageUnavailable."""

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry, durably."""

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Make these all that is in the list."""

    def read(self) -> list[dict[str, Any]]:
        """All entries, oldest first. One that was cut by a crash is passed over."""


class FileLines:
    """:class:`Lines` in a file, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_name = False  # durably: another process may have made the file a moment ago

    def __str__(self) -> str:
        return str(self._path)

    def append(self, entry: Mapping[str, Any]) -> None:
        with storage_errors(self._path.parent):
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
            try:
                # a crash or a full disk may have cut the line before: this one shall not become part of it
                line = (b"" if _is_whole(handle) else b"\n") + format_line(entry)
                while line:  # a disk that becomes full takes a part, and refuses the rest
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            if not self._has_name:
                sync_folder(self._path.parent)
                self._has_name = True

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        replace_file(self._path, b"".join(map(format_line, entries)), mode=PRIVATE)

    def read(self) -> list[dict[str, Any]]:
        with storage_errors(self._path.parent):
            try:
                lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
            except FileNotFoundError:
                return []
        return [found for line in lines if (found := parse_line(line)) is not None]


def _is_whole(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"


def format_line(entry: Mapping[str, Any]) -> bytes:
    return (json.dumps(entry) + "\n").encode()


def parse_line(line: str) -> dict[str, Any] | None:
    """None for what is no JSON object."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
