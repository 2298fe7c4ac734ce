"""All that this worker has told the coordinator, for its own people: ``feddisco worker told``.

::

    STATE/told.jsonl   one line a message (mode 0600), written before it is sent

Not in it: requests that carry nothing of the site (polls, downloads), and heartbeats, which repeat epoch,
step and loss every few seconds.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.files import PRIVATE, storage_errors

__all__ = ["ACCOUNT", "Told", "told_lines"]

FILE = "told.jsonl"
ACCOUNT = "privacy-spent.json"
"""What private training has cost: :mod:`worker.privacy_account`."""


class Told:
    """Appends to the list; the same message again (a retry) is one line."""

    def __init__(self, folder: Path, now: Callable[[], dt.datetime]) -> None:
        self._path = folder / FILE
        self._now = now
        self._last: dict[str, dict[str, Any]] = {}

    def record(self, what: str, content: dict[str, Any]) -> None:
        """``what`` is the method and path of the API."""
        if self._last.get(what) == content:
            return
        line = {"at": self._now().isoformat(timespec="seconds"), "what": what, "content": content}
        with storage_errors(self._path.parent):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
            with open(handle, "ab") as file:
                file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._last[what] = content


def told_lines(state: Path) -> Iterator[str]:
    """Every message from ``state`` and its slots, one line each, oldest first."""
    found = [
        entry for path in (state / FILE, *sorted(state.glob(f"slot-*/{FILE}"))) for entry in _entries(path)
    ]
    for entry in sorted(found, key=lambda entry: str(entry["at"])):
        content = ", ".join(f"{name} {_words(value)}" for name, value in entry["content"].items())
        yield f"{entry['at']}  {entry['what']}: {content}"


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote, before anything was sent


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
