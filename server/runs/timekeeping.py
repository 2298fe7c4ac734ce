"""Which time counts for no deadline: without a coordinator or its database, and by which a clock was set."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable

from server.clock import Clock
from server.database.store import Store
from server.runs.runner import ACTOR, Runner
from shared.problems import StorageUnavailable

__all__ = ["NOTE_SECONDS", "TimeKeeper", "find_uncounted"]

NOTE_SECONDS = 5.0
RECENTLY = dt.timedelta(seconds=3 * NOTE_SECONDS)
TOLERANCE = dt.timedelta(seconds=1)
"""A smaller step is followed without a word."""
WITHOUT_DATABASE = dt.timedelta(seconds=NOTE_SECONDS)
"""One that takes a note later than this was away: it has taken no update either."""
NOTHING = dt.timedelta(0)

log = logging.getLogger("feddisco")


def find_uncounted(
    before: dt.datetime | None, mine: dt.datetime | None, own: dt.datetime, wall: dt.datetime
) -> dt.timedelta:
    """The time that counts for no deadline, when the clock is set from ``own`` to ``wall``.

    Args:
        before: when a coordinator last noted that it is alive; ``mine``: when this one did.
        own: the time by this process's clock, which neither steps nor runs while the host is suspended;
            when the database was away, the time at which it was asked first.
        wall: the time of day, which all coordinators share.

    Returns:
        Negative if the time of day was set back; 0 for less than a second, and while others were alive.
    """
    if before is None:
        return NOTHING
    if mine is None:
        found = wall - before  # a process that starts: nobody, or others, were there meanwhile
    elif before == mine or (_is_recent(before, own) and not _is_recent(before, wall)):
        found = wall - own  # this process alone, or others that have not seen the step yet
    else:
        found = NOTHING if _is_recent(before, wall) else wall - before
    return found if abs(found) >= TOLERANCE else NOTHING


def _is_recent(noted: dt.datetime, now: dt.datetime) -> bool:
    return -TOLERANCE <= now - noted <= RECENTLY


class TimeKeeper:
    """Sets the coordinator's clock by the time of day, and moves open deadlines by what does not count."""

    def __init__(self, store: Store, runner: Runner, clock: Clock) -> None:
        self._store = store
        self._runner = runner
        runner.follow_time = self.follow
        self._clock = clock
        self._noted: dt.datetime | None = None
        self._due = 0.0
        self._tried: dt.datetime | None = None  # since when, while the database takes nothing
        self._keeping = threading.RLock()

    def start(self) -> None:
        """Before the first request: clients have time to come back to a coordinator that was away."""
        now = self._clock()
        self._store.database_id(now)  # its row is where it is noted who is alive
        self._count_absence(now, lambda before: find_uncounted(before, None, now, now), self._clock)
        self._note(now)

    def keep(self) -> bool:
        """Before deadlines are looked at: see that the clock is right, and note that this process lives.

        Returns:
            Whether they may be: not at once where another coordinator has come back first and moves them.
        """
        with self._keeping:
            self._tried = self._tried or self._clock()
            wall, own = self._clock.read_wall(), self._clock()
            if abs(wall - own) < TOLERANCE and self._clock.monotonic() < self._due:
                self._tried = None
                return True
            mine, tried = self._noted, self._tried

            def read_now() -> dt.datetime:
                return wall + (self._clock() - own)

            def find(before: dt.datetime | None) -> dt.timedelta:
                now = self._clock()
                since = tried if now - tried >= WITHOUT_DATABASE else now
                return find_uncounted(before, mine, since, read_now())

            uncounted = self._store.note_alive(wall, find)
            if uncounted:
                uncounted = self._count_absence(wall, find, read_now, set_at=read_now())
            was_away = self._clock() - tried >= WITHOUT_DATABASE
            self._tried = None
            self._note(wall)
            self._clock.set(read_now())
            return bool(uncounted) or not was_away

    def check(self) -> None:
        """For readiness: one that answers may take no writes, as a standby. Raises StorageUnavailable."""
        tried = self._tried
        if tried is not None and self._clock() - tried > RECENTLY:
            seconds = (self._clock() - tried).total_seconds()
            what = f"the database has taken nothing for {seconds:.0f} s; the log has the reason"
            raise StorageUnavailable(what, public=what)

    def follow(self) -> None:
        """Before a transition: a round that opens by a clock that has been set since ends by it, too.

        Another coordinator may have seen the step already, and moved the deadlines that there were.
        """
        if abs(self._clock.read_wall() - self._clock()) >= TOLERANCE:
            self.keep()

    def _note(self, now: dt.datetime) -> None:
        self._noted, self._due = now, self._clock.monotonic() + NOTE_SECONDS

    def _count_absence(
        self,
        note: dt.datetime,
        find: Callable[[dt.datetime | None], dt.timedelta],
        read_now: Callable[[], dt.datetime],
        set_at: dt.datetime | None = None,
    ) -> dt.timedelta:
        uncounted, decided = self._store.count_absence(note, find, read_now, actor=ACTOR, set_at=set_at)
        if uncounted:
            log.warning(
                "%.1f s count for no deadline: coordinator or database away, or the clock was set",
                uncounted.total_seconds(),
            )
        for run, decision in decided:
            self._runner.hand_over(run, decision)
        return uncounted
