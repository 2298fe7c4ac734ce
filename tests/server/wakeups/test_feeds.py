"""One query and one serialisation for all who follow a log, in order, and nothing twice or never."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from server.wakeups import feeds as module
from server.wakeups.feeds import EventBatch, Feed, Feeds, Follower
from server.wakeups.hub import Hub
from shared.problems import StorageUnavailable
from shared.schemas import EventView

NOW = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)


def event(number: int, run: str = "demo") -> EventView:
    return EventView(
        id=number, at=NOW, kind="round_opened", run=run, round=1, client=None, actor="coordinator", detail={}
    )


def do_nothing() -> None:
    pass


class Log:
    """An event log in memory, which counts how often it is read."""

    def __init__(self, length: int) -> None:
        self.events = [event(number) for number in range(1, length + 1)]
        self.reads = 0
        self.fault: Exception | None = None
        self.meanwhile: Callable[[], None] = do_nothing  # after an answer was found, and before it is there

    async def read(self, after: int, _run: str | None, most: int) -> list[EventView]:
        self.reads += 1
        found = [event for event in self.events if event.id > after][:most]
        self.meanwhile()
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return found

    async def find_newest(self, _run: str | None) -> int:
        if self.fault is not None:
            raise self.fault
        return self.events[-1].id if self.events else 0

    def grow(self, many: int) -> None:
        self.events += [event(len(self.events) + number) for number in range(1, many + 1)]


async def joined(feed: Feed, follower: Follower) -> None:
    """Waits until the follower may begin, and has it pass over the past."""
    await until(lambda: feed.take(follower) is None)


async def take_next(feed: Feed, follower: Follower) -> list[EventBatch]:
    while not (batches := feed.take(follower)):
        assert await follower.wait(10)
    return batches


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def has_read(feed: Feed, newest: int) -> bool:
    return feed.newest == newest


def ids(follower: Follower, feed: Feed) -> list[int]:
    batches = feed.take(follower)
    assert batches is not None
    return [entry.id for batch in batches for entry in batch.entries]


def play(story: Callable[[Log, Feeds], Coroutine[Any, Any, None]], many: int = 3) -> Log:
    log = Log(many)
    asyncio.run(story(log, Feeds(log.read, log.find_newest)))
    return log


def test_all_followers_get_the_same_bytes_of_one_reading() -> None:
    async def story(log: Log, feeds: Feeds) -> None:
        with feeds.following("demo", None) as (feed, one), feeds.following("demo", None) as (same, other):
            assert same is feed
            await joined(feed, one)
            await joined(feed, other)
            log.grow(2)
            feeds.notify("demo", {"round": 1, "client": "north"})
            mine, theirs = await take_next(feed, one), await take_next(feed, other)
            assert [id(batch.data) for batch in mine] == [id(batch.data) for batch in theirs]
            assert [entry.id for batch in mine for entry in batch.entries] == [4, 5, 0]
            assert mine[0].data.endswith(b'event: progress\ndata: {"round":1,"client":"north"}\n\n')

    assert play(story).reads == 1


def test_the_past_is_read_once_for_all_who_ask_at_the_same_time() -> None:
    async def story(_log: Log, feeds: Feeds) -> None:
        with feeds.following("demo", None) as (feed, follower):
            await joined(feed, follower)
            batches = await asyncio.gather(*(feed.read_past(0) for _ in range(50)))
            assert {id(batch) for batch in batches} == {id(batches[0])}
            assert (batches[0].first, batches[0].last) == (1, module.MOST_EVENTS)
            rest = await feed.read_past(batches[0].last)
            assert (rest.first, rest.last) == (module.MOST_EVENTS + 1, 250)
            assert (await feed.read_past(rest.last)).entries == ()

    assert play(story, 250).reads == 3


def test_what_has_changed_is_read_again_also_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)

    async def story(log: Log, feeds: Feeds) -> None:
        def erase() -> None:
            log.meanwhile = do_nothing
            log.events = [known.model_copy(update={"actor": "erased-1"}) for known in log.events]
            Hub(feeds).receive({"forget": True})

        with feeds.following("demo", None) as (feed, slow), feeds.following("demo", None) as (_, quick):
            await joined(feed, slow)
            await joined(feed, quick)
            assert b"coordinator" in (await feed.read_past(0)).data
            log.grow(1)
            feeds.notify("demo", None)
            (batch,) = await take_next(feed, quick)
            assert b"coordinator" in batch.data
            erase()
            assert feed.take(slow) is None, "what is kept for it is not what the log says"
            assert b"coordinator" not in (await feed.read_past(0)).data
            log.meanwhile = erase
            log.grow(1)
            feeds.notify("demo", None)
            (batch,) = await take_next(feed, quick)
            assert [entry.id for entry in batch.entries] == [5]
            assert b"coordinator" not in batch.data

    play(story)


def test_who_is_far_behind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)

    async def story(log: Log, feeds: Feeds) -> None:
        with feeds.following("demo", None) as (feed, slow), feeds.following("demo", None) as (_, quick):
            await joined(feed, slow)
            await joined(feed, quick)
            for number in range(module.BATCHES_KEPT + 1):
                log.grow(1)
                feeds.notify("demo", None)
                await until(partial(has_read, feed, 4 + number))
                assert ids(quick, feed) == [4 + number]
            assert feed.take(slow) is None
            assert feed.take(slow) == []  # from here on it is told again

    play(story)


def test_a_log_that_cannot_be_read_is_read_later_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)

    async def story(log: Log, feeds: Feeds) -> None:
        with feeds.following(None, None) as (feed, follower):
            await joined(feed, follower)
            log.grow(module.MOST_EVENTS + 7)
            log.fault = StorageUnavailable("the disk is full")
            feeds.notify("demo", None)
            await until(lambda: log.reads >= 2)
            log.fault = ValueError("a mistake of ours")
            await until(lambda: log.reads >= 4)
            log.fault = None
            await until(lambda: feed.newest == 3 + module.MOST_EVENTS + 7)
            assert ids(follower, feed) == list(range(4, 3 + module.MOST_EVENTS + 8))

    play(story)


def test_whoever_comes_while_the_log_cannot_be_read_is_told_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)

    async def story(log: Log, feeds: Feeds) -> None:
        log.fault = StorageUnavailable("the disk is full")
        with feeds.following("demo", None) as (feed, follower):
            assert not await follower.wait(0.1)
            assert feed.take(follower) == []
            log.fault = None
            assert await follower.wait(10)
            assert feed.take(follower) is None
            assert (await feed.read_past(1)).last == 3

    play(story)


def test_a_feed_ends_with_its_last_follower() -> None:
    async def story(_log: Log, feeds: Feeds) -> None:
        with feeds.following("demo", None), feeds.following(None, None):
            assert feeds.followers == 2
        assert feeds.followers == 0
        await until(lambda: len(asyncio.all_tasks()) == 1)

    play(story)


def test_the_more_follow_the_longer_is_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)

    async def story(log: Log, feeds: Feeds) -> None:
        with feeds.following("demo", None) as (feed, follower):
            feed.followers |= {Follower() for _ in range(49)}  # 50 followers: 0.2 s
            await joined(feed, follower)
            began = asyncio.get_running_loop().time()
            for _ in range(3):
                log.grow(1)
                feeds.notify("demo", None)
                await take_next(feed, follower)
            assert asyncio.get_running_loop().time() - began >= 2 * 50 * module.PAUSE_SECONDS_EACH
            feed.followers &= {follower}

    play(story)


def test_who_sleeps_wakes_when_the_process_ends() -> None:
    async def play() -> None:
        hub = Hub()
        await hub.sleep(0.01)
        asleep = asyncio.ensure_future(hub.sleep(60))
        await asyncio.sleep(0)
        hub.close()
        async with asyncio.timeout(5):
            await asleep

    asyncio.run(play())
