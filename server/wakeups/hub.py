"""Who is waiting: long polls sleep here, and event streams in their feeds; none asks the database meanwhile.

A long poll registers *before* it queries and waits after it, so nothing that is committed in between
is missed. With several coordinators on one PostgreSQL, ``server.wakeups.postgres`` passes the same
messages on to the other processes; no other module knows of that.

All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from server.wakeups.feeds import Feeds

__all__ = ["Hub", "Relay", "Waiter"]

RECHECK_SECONDS = 9.0
"""What others have committed without a word is known a second after that at the latest."""


class Relay(Protocol):
    """Passes messages on to other coordinator processes; must not block."""

    def send(self, message: dict[str, Any]) -> None: ...


class Waiter:
    """One long poll's place in the queue. Ten thousand of them wait: an object, and while it sleeps a future
    and a timer, no task of its own and no exception at the end of the time."""

    __slots__ = ("_asleep", "_gone", "_hub", "_woken", "is_refused")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asleep: asyncio.Future[None] | None = None
        self._woken = self._gone = False
        self.is_refused = False
        """Its client's token is not accepted any more."""

    def wake(self) -> None:
        self._woken = True
        self._rouse()

    def leave(self) -> None:
        """Nobody waits any more: the client has hung up."""
        self._gone = True
        self.wake()

    def refuse(self) -> None:
        self.is_refused = True
        self.wake()

    async def wait(self, seconds: float) -> bool:
        """Sleep until woken (True) or until the time is over (False). May be called again."""
        if not self.is_over and not self._woken:
            loop = asyncio.get_running_loop()
            self._asleep = loop.create_future()
            timer = loop.call_later(seconds, self._rouse)
            try:
                await self._asleep
            finally:
                timer.cancel()
                self._asleep = None
        woken, self._woken = self._woken, False
        return woken and not self.is_over

    @property
    def is_over(self) -> bool:
        """It waits no more: the client or its right has gone, or the process ends."""
        return self._hub.closed or self._gone or self.is_refused

    def _rouse(self) -> None:
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


class Hub:
    """Wakes long polls by client, and tells the feeds of event streams by run."""

    def __init__(self, feeds: Feeds | None = None) -> None:
        self.closed = False
        self.relay: Relay | None = None
        self.on_end: Callable[[str], None] | None = None
        """Called with what another process says is not accepted any more."""
        self.on_news: Callable[[], None] | None = None
        """Called when another process says that it has committed something."""
        self._feeds = feeds  # None: nobody follows events here
        self._asleep: set[asyncio.Event] = set()
        self._polls: defaultdict[str, set[Waiter]] = defaultdict(set)

    def enter(self, client: str) -> Waiter:
        """A place for a poll of the client, until :meth:`leave`."""
        waiter = Waiter(self)
        self._polls[client].add(waiter)
        return waiter

    def leave(self, client: str, waiter: Waiter) -> None:
        waiters = self._polls[client]
        waiters.discard(waiter)
        if not waiters:
            del self._polls[client]

    @contextmanager
    def polling(self, client: str) -> Iterator[Waiter]:
        waiter = self.enter(client)
        try:
            yield waiter
        finally:
            self.leave(client, waiter)

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

    def refuse(self, client: str) -> None:
        """Its token is not accepted any more: polls that wait in this process end."""
        for waiter in self._polls.get(client, ()):
            waiter.refuse()

    def wake_everyone(self) -> None:
        """For news that concerns clients not known by name, such as a new run."""
        self._publish({"everyone": True})

    def announce(self, run: str | None, about: Iterable[str] = ()) -> None:
        """The event log has grown, by what some clients did or what happened to them.

        Their next polls know it in this process; at another one they may wait already.
        """
        names = list(about)
        self._publish({"run": run} | ({"about": names} if names and self.relay is not None else {}))

    def announce_progress(self, run: str, progress: dict[str, Any]) -> None:
        """A client's heartbeat: shown live, not kept in the event log."""
        self._publish({"run": run, "progress": progress})

    def announce_end(self, key: str) -> None:
        """To other processes: this client, user or session (``server.web.security.make_key``) is no more.

        They look for revocations as well, but find none of a client whose name was erased.
        """
        if self.relay is not None:
            self.relay.send({"end": key})

    def forget_past(self) -> None:
        """Entries of the event log are not what they were: a client was erased."""
        self._publish({"forget": True})

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

    def hear(self, message: dict[str, Any]) -> None:
        """A message from another process's relay: what is remembered here is doubted before anybody wakes."""
        if "progress" not in message and self.on_news is not None:
            self.on_news()
        self.receive({**message, "wake": [*message.get("wake", ()), *message.get("about", ())]})

    def receive(self, message: dict[str, Any]) -> None:
        """A message of this process's ``_publish``, or of another one."""
        if message.get("everyone"):
            self._wake_everyone()
            if self._feeds is not None:
                self._feeds.notify_all()
        if isinstance(key := message.get("end"), str) and self.on_end is not None:
            self.on_end(key)
        if message.get("forget") and self._feeds is not None:
            self._feeds.forget()
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
