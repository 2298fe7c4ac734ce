"""All that this worker has told the coordinator, for its own people: ``feddisco worker told``.

::

    STATE/told.jsonl   one line a message (mode 0600), written before it is sent

Not in it: requests that carry nothing of the site (polls, downloads), and heartbeats, which repeat epoch,
step and loss every few seconds.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.json_lines import FileLines

__all__ = ["ACCOUNT", "Told", "told_lines"]

FILE = "told.jsonl"
ACCOUNT = "privacy-spent.json"
"""What private training has cost: :mod:`worker.privacy_account`."""


class Told:
    """Appends to the list; the same message again (a retry) is one line."""

    def __init__(self, folder: Path, now: Callable[[], dt.datetime]) -> None:
        self._lines = FileLines(folder / FILE)
        self._now = now
        self._last: dict[str, dict[str, Any]] = {}

    def record(self, what: str, content: dict[str, Any]) -> None:
        """``what`` is the method and path of the API."""
        if self._last.get(what) == content:
            return
        at = self._now().isoformat(timespec="seconds")
        self._lines.append({"at": at, "what": what, "content": content})
        self._last[what] = content


def told_lines(state: Path) -> Iterator[str]:
    """Every message from ``state`` and its slots, one line each, oldest first."""
    files = (state / FILE, *sorted(state.glob(f"slot-*/{FILE}")))
    found = [entry for path in files for entry in FileLines(path).read()]
    for entry in sorted(found, key=lambda entry: str(entry.get("at", ""))):
        if not _is_message(entry):
            yield f"an entry that is no message: {json.dumps(entry, ensure_ascii=False)}"
            continue
        content = ", ".join(f"{name} {_words(value)}" for name, value in entry["content"].items())
        yield f"{entry['at']}  {entry['what']}: {content}"


def _is_message(entry: dict[str, Any]) -> bool:
    """Not so where a line was damaged, or written by something else."""
    return {"at", "what"} <= entry.keys() and isinstance(entry.get("content"), dict)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
