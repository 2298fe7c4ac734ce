"""Runs that were deleted and clients that were erased, kept beside the database: a backup still has them.

A list of JSON objects, written before anything is removed and applied at each start. So it also ends a
removal that a crash interrupted, and removes once more what a restored backup brings back.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from shared.json_lines import Lines
from shared.problems import StorageUnavailable

__all__ = ["FILE", "Removals", "RemovedRun"]

FILE = "removals.jsonl"

log = logging.getLogger("feddisco")


@dataclass(frozen=True, slots=True)
class RemovedRun:
    """``created_at`` tells the run from another one of its name in a restored database."""

    run: str
    created_at: dt.datetime
    actor: str
    reason: str


class Removals:
    """The list of one installation; several processes may add to it."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def add_run(self, removed: RemovedRun, now: dt.datetime) -> None:
        """A disk that refuses keeps no run alive, since deleting makes room: it is only logged."""
        entry = {
            "run": removed.run,
            "created_at": removed.created_at.isoformat(),
            "actor": removed.actor,
            "reason": removed.reason,
            "at": now.isoformat(),
        }
        try:
            self._lines.append(entry)
        except StorageUnavailable as fault:
            log.error("the deletion of run %s could not be noted in %s: %s", removed.run, self._lines, fault)

    def add_client(self, token_hash: str, actor: str, now: dt.datetime) -> None:
        """A client that is to be erased, known by its token. Raises StorageUnavailable."""
        self._lines.append({"client": token_hash, "actor": actor, "at": now.isoformat()})

    def read_clients(self) -> dict[str, str]:
        """By the hash of its token, who had it erased."""
        entries = self._lines.read()
        return {
            each["client"]: str(each.get("actor")) for each in entries if isinstance(each.get("client"), str)
        }

    def forget_runs(self) -> None:
        """Let a restored database keep the runs that were deleted since its backup."""
        kept = [entry for entry in self._lines.read() if "run" not in entry]
        self._lines.replace(kept)

    def read_runs(self) -> Iterator[RemovedRun]:
        """Oldest first."""
        for entry in self._lines.read():
            match entry:
                case {"run": str(run), "created_at": str(text), "actor": str(actor), "reason": str(reason)}:
                    yield RemovedRun(run, dt.datetime.fromisoformat(text), actor, reason)
