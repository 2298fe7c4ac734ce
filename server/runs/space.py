"""How much room there is for files: the quotas of a run and of all runs, and the disk's own space.

Measured every few seconds, and counted on in between. Whoever looks is warned before anything is refused.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from server.background import repeat
from server.database.store import Store
from server.settings import Settings
from server.threads import Threads
from shared.problems import QuotaExceeded
from shared.texts import format_size

__all__ = ["Space", "Usage"]

MEASURE_SECONDS = 15.0
LEAST_FREE_BYTES: Final = 64 * 2**20
LEAST_FREE_SHARE = 0.02
ALARM_FREE = 5  # times the space that has to stay free


@dataclass(frozen=True)
class Usage:
    """Bytes: of the files that some run refers to, by run and in all; of the disk, and free on it."""

    by_run: Mapping[str, int] = field(default_factory=dict)
    stored: int = 0
    disk: int = 0
    free: int = 0


@dataclass(frozen=True)
class Limit:
    """``used`` of ``most`` bytes for ``what``; from ``alarm_at`` on it is told."""

    setting: str
    what: str
    used: int
    most: int
    alarm_at: int

    def __str__(self) -> str:
        return f"{self.what}: {format_size(self.used)} of {format_size(self.most)} are used"

    @property
    def warning(self) -> str:
        over = ", and updates are refused" if self.used >= self.most else ""
        return f"{self}{over}. The limit is FEDDISCO_{self.setting.upper()}."


class Space:
    """Thread-safe. Nothing is refused before the first measurement."""

    def __init__(self, store: Store, folder: Path, threads: Threads, settings: Settings) -> None:
        self._store = store
        self._folder = folder
        self._threads = threads
        self._settings = settings
        self._lock = threading.Lock()
        self._added: defaultdict[str, int] = defaultdict(int)  # since the measurement
        self.usage: Usage | None = None

    async def run(self) -> None:
        """Until cancelled."""
        await repeat(MEASURE_SECONDS, self._measure_on_thread, "cannot measure the space", at_once=True)

    async def _measure_on_thread(self) -> None:
        await self._threads.run_long(self.measure)

    def measure(self) -> None:
        by_run, stored = self._store.stored_bytes()
        disk = shutil.disk_usage(self._folder)
        with self._lock:
            self.usage = Usage(by_run, stored, disk.total, disk.free)
            self._added.clear()

    def note(self, run: str, added: int) -> None:
        """A file of the run has been stored."""
        with self._lock:
            self._added[run] += added

    def check(self, run: str | None, wanted: int) -> None:
        """Raises :class:`QuotaExceeded` if there is no room for so many more bytes; None: of no run yet."""
        for limit in self._limits(run):
            if limit.used + wanted > limit.most:
                raise QuotaExceeded(
                    f"{limit}; {format_size(wanted)} more were to come",
                    hint="The operator has to free space or raise the limit; then it goes on by itself.",
                    limit=limit.setting,
                )

    def find_warnings(self) -> list[str]:
        """A sentence for each limit that is nearly reached, or reached."""
        quota = self._settings.max_run_bytes
        by_run = self.usage.by_run if self.usage is not None and quota is not None else ()
        limits = {
            limit.setting + limit.what: limit
            for run in (None, *sorted(by_run))
            for limit in self._limits(run)
        }
        return [limit.warning for limit in limits.values() if limit.used >= limit.alarm_at]

    def _limits(self, run: str | None) -> list[Limit]:
        """Those that apply; none before the first measurement."""
        settings, usage = self._settings, self.usage
        if usage is None:
            return []
        with self._lock:
            added_here, added = self._added.get(run or "", 0), sum(self._added.values())
        least = settings.min_free_bytes
        if least is None:
            least = min(LEAST_FREE_BYTES, int(LEAST_FREE_SHARE * usage.disk))
        used = usage.disk - usage.free + added
        room = usage.disk - least
        found = [Limit("min_free_bytes", "the disk", used, room, usage.disk - ALARM_FREE * least)]
        if settings.max_stored_bytes is not None:
            found.append(self._quota("max_stored_bytes", "the files of all runs", usage.stored + added))
        if run is not None and settings.max_run_bytes is not None:
            used = usage.by_run.get(run, 0) + added_here
            found.append(self._quota("max_run_bytes", f"the files of run {run}", used))
        return found

    def _quota(self, setting: str, what: str, used: int) -> Limit:
        most: int = getattr(self._settings, setting)
        return Limit(setting, what, used, most, int(self._settings.quota_alarm * most))
