"""Who is waiting: long polls sleep here, and event streams in their feeds; none asks the database meanwhile.

A long poll registers *before* it queries and waits after it, so nothing that is committed in between
is missed. With several coordinators on one PostgreSQL, ``server.wakeups.postgres`` passes the same
messages on to the other processes; no other module knows of that.

All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from server.wakeups.feeds import Feeds

__all__ = ["Hub", "Relay", "Waiter"]

RECHECK_SECONDS = 10.0


class Relay(Protocol):
    """Passes messages on to other coordinator processes; must not block."""

    def send(self, message: dict[str, Any]) -> None: ...


class Waiter:
    """One long poll's place in the queue."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._event = asyncio.Event()
        self._gone = False

    def wake(self) -> None:
        self._event.set()

    def leave(self) -> None:
        """Nobody waits any more: the client has hung up."""
        self._gone = True
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Sleep until woken (True) or until the time is over (False). May be called again."""
        if self._hub.closed or self._gone:
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return not (self._hub.closed or self._gone)


class Hub:
    """Wakes long polls by client, and tells the feeds of event streams by run."""

    def __init__(self, feeds: Feeds | None = None) -> None:
        self.closed = False
        self.relay: Relay | None = None
        self._feeds = feeds  # None: nobody follows events here
        self._asleep: set[asyncio.Event] = set()
        self._polls: defaultdict[str, set[Waiter]] = defaultdict(set)

    @contextmanager
    def polling(self, client: str) -> Iterator[Waiter]:
        waiter = Waiter(self)
        self._polls[client].add(waiter)
        try:
            yield waiter
        finally:
            self._polls[client].discard(waiter)
            if not self._polls[client]:
                del self._polls[client]

    @property
    def recheck_seconds(self) -> float | None:
        """How long to sleep before looking again without being woken; None: for ever, nobody else writes."""
        return RECHECK_SECONDS if self.relay is not None else None

    @property
    def waiting_polls(self) -> int:
        return sum(map(len, self._polls.values()))

    @property
    def open_streams(self) -> int:
        return 0 if self._feeds is None else self._feeds.followers

    def wake(self, clients: Iterable[str]) -> None:
        """These clients' long polls may have an answer now."""
        names = list(clients)
        if names:
            self._publish({"wake": names})

    def wake_everyone(self) -> None:
        """For news that concerns clients not known by name, such as a new run."""
        self._publish({"everyone": True})

    def announce(self, run: str | None) -> None:
        """The event log has grown."""
        self._publish({"run": run})

    def announce_progress(self, run: str, progress: dict[str, Any]) -> None:
        """A client's heartbeat: shown live, not kept in the event log."""
        self._publish({"run": run, "progress": progress})

    def close(self) -> None:
        """The process is shutting down: everybody who waits is answered now."""
        self.closed = True
        for alarm in self._asleep:
            alarm.set()
        self._wake_everyone()
        if self._feeds is not None:
            self._feeds.wake_all()

    async def sleep(self, seconds: float) -> None:
        """So long, or until the process is shutting down."""
        alarm = asyncio.Event()
        self._asleep.add(alarm)
        try:
            async with asyncio.timeout(0 if self.closed else seconds):
                await alarm.wait()
        except TimeoutError:
            return
        finally:
            self._asleep.discard(alarm)

    def receive(self, message: dict[str, Any]) -> None:
        """A message from another process's relay (or from this one's ``_publish``)."""
        if message.get("everyone"):
            self._wake_everyone()
            if self._feeds is not None:
                self._feeds.notify_all()
        for client in message.get("wake", ()):
            for waiter in self._polls.get(client, ()):
                waiter.wake()
        if "run" in message and self._feeds is not None:
            self._feeds.notify(message["run"], message.get("progress"))

    def _publish(self, message: dict[str, Any]) -> None:
        self.receive(message)
        if self.relay is not None:
            self.relay.send(message)

    def _wake_everyone(self) -> None:
        for waiters in self._polls.values():
            for waiter in waiters:
                waiter.wake()
