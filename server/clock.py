"""The coordinator's clock: the time of day, whose differences no step of the system's clock changes."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

__all__ = ["Clock", "utc_now"]


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Clock:
    """The time of day as it was when the clock was last set, and the monotonic seconds since then.

    So nothing that a running process measures changes with a step of the system's clock, or while the host
    is suspended. Whoever calls :meth:`set` says what such a step counts for (decision 18).

    >>> clock = Clock(lambda: dt.datetime(2026, 11, 28, tzinfo=dt.UTC), lambda: 5.0)
    >>> clock().isoformat()
    '2026-11-28T00:00:00+00:00'
    """

    def __init__(
        self, read_wall: Callable[[], dt.datetime] = utc_now, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """``read_wall``: the time of day, aware. ``monotonic``: seconds since any moment."""
        self.read_wall = read_wall
        self.monotonic = monotonic
        self.set(read_wall())

    def __call__(self) -> dt.datetime:
        at, then = self._set
        return at + dt.timedelta(seconds=self.monotonic() - then)

    def set(self, at: dt.datetime) -> None:
        self._set = (at, self.monotonic())
