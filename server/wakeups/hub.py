"""Who is waiting: long polls and event streams sleep here and do not ask the database meanwhile.

A long poll registers *before* it queries and waits after it, so nothing that is committed in between
is missed. With several coordinators on one PostgreSQL, ``server.wakeups.postgres`` passes the same
messages on to the other processes; no other module knows of that.

All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Hub", "Relay", "Stream", "Waiter"]

PROGRESS_KEPT = 256
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


class Stream(Waiter):
    """One event stream: wakes for new log entries of ``run`` (None: of all runs) and for heartbeats."""

    def __init__(self, hub: Hub, run: str | None) -> None:
        super().__init__(hub)
        self.run = run
        self.progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_KEPT)

    def is_about(self, run: str | None) -> bool:
        return self.run is None or self.run == run


class Hub:
    """Wakes long polls by client and event streams by run."""

    def __init__(self) -> None:
        self.closed = False
        self.relay: Relay | None = None
        self._polls: defaultdict[str, set[Waiter]] = defaultdict(set)
        self._streams: set[Stream] = set()

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

    @contextmanager
    def streaming(self, run: str | None) -> Iterator[Stream]:
        stream = Stream(self, run)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    @property
    def recheck_seconds(self) -> float | None:
        """How long to sleep before looking again without being woken; None: for ever, nobody else writes."""
        return RECHECK_SECONDS if self.relay is not None else None

    @property
    def waiting_polls(self) -> int:
        return sum(map(len, self._polls.values()))

    @property
    def open_streams(self) -> int:
        return len(self._streams)

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
        self._wake_everyone()
        for stream in self._streams:
            stream.wake()

    def receive(self, message: dict[str, Any]) -> None:
        """A message from another process's relay (or from this one's ``_publish``)."""
        if message.get("everyone"):
            self._wake_everyone()
        for client in message.get("wake", ()):
            for waiter in self._polls.get(client, ()):
                waiter.wake()
        if "run" in message:
            self._wake_streams(message["run"], message.get("progress"))

    def _publish(self, message: dict[str, Any]) -> None:
        self.receive(message)
        if self.relay is not None:
            self.relay.send(message)

    def _wake_everyone(self) -> None:
        for waiters in self._polls.values():
            for waiter in waiters:
                waiter.wake()

    def _wake_streams(self, run: str | None, progress: dict[str, Any] | None) -> None:
        for stream in self._streams:
            if stream.is_about(run):
                if progress is not None:
                    stream.progress.append(progress)
                stream.wake()
