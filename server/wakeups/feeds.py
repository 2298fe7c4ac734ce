"""The event log for everybody who follows it: each entry is read once and written out once.

A feed belongs to one run, or to all, for as long as somebody follows it. Between two looks at the log it
pauses, the longer the more follow it: so viewers cost the coordinator a fixed small share of a core, however
many there are. All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache
from pydantic_core import to_json

from shared.problems import ServiceFault
from shared.schemas import EventView

__all__ = ["Entry", "EventBatch", "Feed", "Feeds", "Follower", "write_event"]

MOST_EVENTS = 200
"""In one query."""
BATCHES_KEPT = 64
"""That a follower may be behind, before it has to read the log itself."""
PAST_BATCHES_KEPT = 16
"""For those who open the same page at the same time."""
HEARTBEATS_KEPT = 256
RETRY_SECONDS = 1.0
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_EACH = 0.01
"""Telling one follower takes some 50 microseconds: half a per cent of a core for all of them."""
LONGEST_PAUSE_SECONDS = 5.0

ReadEvents = Callable[[int, str | None, int], Awaitable[Sequence[EventView]]]
"""Events after an id, of a run or of all, at most so many."""
FindNewest = Callable[[str | None], Awaitable[int]]

log = logging.getLogger("feddisco.feeds")


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, or a heartbeat, which is a dictionary and has the id 0; ``data`` is what goes out."""

    id: int
    content: EventView | dict[str, Any]
    data: bytes


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Entries that were read together, and all their bytes for whoever reads everything.

    ``first`` and ``last`` are ids of events, 0 if there are none among them.
    """

    entries: tuple[Entry, ...]
    first: int
    last: int
    data: bytes


def make_batch(entries: Sequence[Entry]) -> EventBatch:
    ids = [entry.id for entry in entries if entry.id]
    data = b"".join(entry.data for entry in entries)
    return EventBatch(tuple(entries), min(ids, default=0), max(ids, default=0), data)


def make_entry(event: EventView) -> Entry:
    return Entry(event.id, event, write_event(event))


def write_event(event: EventView) -> bytes:
    """As a server-sent event: JSON has no line ends, and kinds are our own words."""
    return b"event: %s\ndata: %s\nid: %d\n\n" % (
        event.kind.encode(),
        event.model_dump_json().encode(),
        event.id,
    )


def write_progress(progress: dict[str, Any]) -> bytes:
    return b"event: progress\ndata: %s\n\n" % to_json(progress)


class Follower:
    """One open stream: its place in the feed, and what wakes it.

    ``place`` counts the batches that it has had; None: it has not read the past yet.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.place: int | None = None

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Whether there may be news; False when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Feed:
    """The newest entries of one run's log, or of all. ``newest`` is the id that it has been read up to."""

    def __init__(self, run: str | None, read: ReadEvents, find_newest: FindNewest) -> None:
        self.run = run
        self.newest = 0
        self.followers: set[Follower] = set()
        self._read = read
        self._find_newest = find_newest
        self._has_begun = False
        self._batches: deque[EventBatch] = deque(maxlen=BATCHES_KEPT)
        self._count = 0  # of batches so far, kept or not
        self._heartbeats: deque[dict[str, Any]] = deque(maxlen=HEARTBEATS_KEPT)
        self._past: LRUCache[tuple[int, int], asyncio.Task[EventBatch]] = LRUCache(PAST_BATCHES_KEPT)
        self._news = asyncio.Event()
        self._changes = 0  # of entries that had been read

    # ------------------------------------------------------------ for its followers

    def take(self, follower: Follower) -> list[EventBatch] | None:
        """What the follower has not had yet, if anything.

        None: it is too far behind, or new. It has to read the past up to ``newest`` first; what comes
        later is kept for it.
        """
        if not self._has_begun:
            return []
        place, follower.place = follower.place, self._count
        if place is None or self._count - place > len(self._batches):
            return None
        return [self._batches[index] for index in range(place - self._count, 0)]

    async def read_past(self, after: int) -> EventBatch:
        """The log after an id, up to ``newest``, at most :data:`MOST_EVENTS`; read once for all who ask."""
        key = after, self.newest
        if key not in self._past or (self._past[key].done() and self._past[key].exception() is not None):
            self._past[key] = asyncio.ensure_future(self._read_past(*key))
        return await asyncio.shield(self._past[key])

    def forget(self) -> None:
        """What was read is not what the log says any more: everybody reads it again."""
        self._past.clear()
        self._batches.clear()
        self._changes += 1

    async def _read_past(self, after: int, newest: int) -> EventBatch:
        found = await self._read(after, self.run, MOST_EVENTS)
        return make_batch([make_entry(event) for event in found if event.id <= newest])

    # ------------------------------------------------------------ the log

    def notify(self, progress: dict[str, Any] | None) -> None:
        """The log has grown, or a heartbeat has come."""
        if progress is not None:
            self._heartbeats.append(progress)
        self._news.set()

    async def run_until_cancelled(self, recheck_seconds: float | None) -> None:
        """``recheck_seconds``: how soon to look although nobody has told of news; None: never."""
        while True:
            try:
                await self._follow_log(recheck_seconds)
            except ServiceFault as fault:
                log.warning("cannot read the event log now: %s", fault.detail)
            except Exception:  # without this loop every stream of the run would fall silent
                log.exception("cannot read the event log now")
            self._news.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_log(self, recheck_seconds: float | None) -> None:
        if not self._has_begun:
            self.newest = await self._find_newest(self.run)
            self._has_begun = True
            self._wake_followers()
        while True:
            await self._wait_for_news(recheck_seconds)
            self._news.clear()
            if entries := [*await self._read_events(), *self._take_heartbeats()]:
                self._add(make_batch(entries))
                self._wake_followers()
            pause = max(PAUSE_SECONDS, PAUSE_SECONDS_EACH * len(self.followers))
            await asyncio.sleep(min(pause, LONGEST_PAUSE_SECONDS))

    async def _wait_for_news(self, recheck_seconds: float | None) -> None:
        try:
            async with asyncio.timeout(recheck_seconds):
                await self._news.wait()
        except TimeoutError:
            return  # others write, too: look, whether told or not

    def _add(self, batch: EventBatch) -> None:
        self._batches.append(batch)
        self._count += 1
        self.newest = max(self.newest, batch.last)

    def _wake_followers(self) -> None:
        for follower in self.followers:
            follower.wake()

    async def _read_events(self) -> list[Entry]:
        entries: list[Entry] = []
        after, changes = self.newest, self._changes
        while True:
            found = await self._read(after, self.run, MOST_EVENTS)
            if changes != self._changes:  # perhaps after this was read
                entries, after, changes = [], self.newest, self._changes
                continue
            entries += map(make_entry, found)
            if len(found) < MOST_EVENTS:
                return entries
            after = found[-1].id

    def _take_heartbeats(self) -> list[Entry]:
        taken = [Entry(0, progress, write_progress(progress)) for progress in self._heartbeats]
        self._heartbeats.clear()
        return taken


class Feeds:
    """The feeds that somebody follows."""

    def __init__(self, read: ReadEvents, find_newest: FindNewest) -> None:
        self._read = read
        self._find_newest = find_newest
        self._feeds: dict[str | None, tuple[Feed, asyncio.Task[None]]] = {}

    @property
    def followers(self) -> int:
        return sum(len(feed.followers) for feed, _ in self._feeds.values())

    @contextmanager
    def following(self, run: str | None, recheck_seconds: float | None) -> Iterator[tuple[Feed, Follower]]:
        """A follower of the run's feed, which begins with its first and ends with its last."""
        if run not in self._feeds:
            feed = Feed(run, self._read, self._find_newest)
            self._feeds[run] = feed, asyncio.ensure_future(feed.run_until_cancelled(recheck_seconds))
        feed, task = self._feeds[run]
        follower = Follower()
        feed.followers.add(follower)
        try:
            yield feed, follower
        finally:
            feed.followers.discard(follower)
            if not feed.followers:
                del self._feeds[run]
                task.cancel()

    def notify(self, run: str | None, progress: dict[str, Any] | None = None) -> None:
        """News of a run: for its feed, and for that of all."""
        for about in {run, None}:
            if about in self._feeds:
                self._feeds[about][0].notify(progress)

    def notify_all(self) -> None:
        for feed, _ in self._feeds.values():
            feed.notify(None)

    def forget(self) -> None:
        """A client was erased, also in the past of runs."""
        for feed, _ in self._feeds.values():
            feed.forget()

    def wake_all(self) -> None:
        """The process is shutting down: every stream looks up."""
        for feed, _ in self._feeds.values():
            for follower in feed.followers:
                follower.wake()
