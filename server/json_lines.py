"""A list in a file beside the database: a database that is restored knows nothing of what came later.

One JSON object a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.files import PRIVATE, replace_file, storage_errors, sync_folder

__all__ = ["append_line", "read_lines", "replace_lines"]


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, durably; several processes may do so. Raises StorageUnavailable."""
    with storage_errors(path.parent):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            os.write(handle, _format(entry))
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent)


def replace_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Make these all that is in the file. Raises StorageUnavailable."""
    replace_file(path, b"".join(map(_format, entries)), mode=PRIVATE)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All entries, oldest first; none without a file. A line that was cut by a crash is passed over."""
    with storage_errors(path.parent):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
    return [found for line in lines if (found := _parse(line)) is not None]


def _format(entry: Mapping[str, Any]) -> bytes:
    return (json.dumps(entry) + "\n").encode()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
