"""What comes in by NOTIFY: whatever it is, the relay goes on, and wakes who is to be woken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
from hypothesis import given
from hypothesis import strategies as st

from server.wakeups.feeds import Feeds
from server.wakeups.hub import Hub
from server.wakeups.postgres import CHANNEL, PostgresRelay, read_payload
from shared.schemas import EventView
from tests.helpers.databases import Postgres

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("everyone", "wake", "run", "progress", "from", "more"), JSON)
)
GARBAGE = (
    "",
    "{",
    "[]",
    "null",
    '"wake"',
    '{"wake": 3, "from": "x"}',
    '{"wake": [[]], "from": "x"}',
    "[" * 7000,
)


@given(st.text() | (JSON | MESSAGE).map(json.dumps))
def test_whatever_is_read_can_be_received(payload: str) -> None:
    message = read_payload(payload)
    if message is not None:
        asyncio.run(_receive(message))


async def _receive(message: dict[str, Any]) -> None:
    async def read(_after: int, _run: str | None, _many: int) -> list[EventView]:
        return []

    async def find_newest(_run: str | None) -> int:
        return 0

    feeds = Feeds(read, find_newest)
    hub = Hub(feeds)
    with hub.polling("north"), feeds.following(None, None):
        hub.receive(message)


def test_what_a_hub_publishes_is_read() -> None:
    published: list[dict[str, Any]] = []

    class Recorder:
        def send(self, message: dict[str, Any]) -> None:
            published.append(message)

    hub = Hub()
    hub.relay = Recorder()
    hub.wake(["north", "south"])
    hub.wake_everyone()
    hub.announce("demo")
    hub.announce(None)
    hub.announce_progress("demo", {"epoch": 1})
    hub.announce_end("client:north")
    hub.forget_past()
    assert len(published) == 7
    assert all(read_payload(json.dumps({**message, "from": "x"})) for message in published)


def test_the_relay_survives_any_payload(postgres: Postgres) -> None:
    url = postgres.url.render_as_string(hide_password=False)

    async def play() -> bool:
        hubs = Hub(), Hub()
        relays = [PostgresRelay(url, hub) for hub in hubs]
        tasks = [asyncio.create_task(relay.run()) for relay in relays]
        with hubs[1].polling("north") as waiter:
            await waiter.wait(20)  # everybody is woken when it listens
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
                for payload in GARBAGE:
                    await other.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
            relays[0].send({"wake": ["north"]})
            woken = await waiter.wait(20)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return woken

    assert asyncio.run(play())


def test_messages_that_come_together_are_told_together_and_in_order(postgres: Postgres) -> None:
    url, many = postgres.url.render_as_string(hide_password=False), 250
    heard: list[dict[str, Any]] = []
    all_heard = asyncio.Event()

    class Listener(Hub):
        def hear(self, message: dict[str, Any]) -> None:
            heard.append(message)
            if message.get("wake") == [f"client-{many - 1}"]:
                all_heard.set()

    async def play() -> None:
        listener = PostgresRelay(url, Listener())
        teller = PostgresRelay(url, Hub())
        tasks = [asyncio.create_task(relay.run()) for relay in (listener, teller)]
        while not heard:  # it listens
            await asyncio.sleep(0.01)
        for index in range(many):
            teller.send({"wake": [f"client-{index}"]})
        async with asyncio.timeout(20):
            await all_heard.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())
    assert [message["wake"] for message in heard[1:]] == [[f"client-{index}"] for index in range(many)]


def test_what_another_process_says_is_doubted_before_anybody_wakes() -> None:
    hub = Hub()
    told: list[str] = []
    hub.on_news = lambda: told.append("doubt")

    async def play() -> None:
        with hub.polling("north") as north, hub.polling("south") as south:
            hub.hear({"run": "demo", "progress": {"epoch": 1}})
            assert told == []
            hub.hear({"run": "demo", "about": ["north"]})
            assert told == ["doubt"]
            assert await north.wait(0)
            assert not await south.wait(0)
            hub.receive({"wake": ["south"]})  # of this process: what is remembered is known to be so
            assert told == ["doubt"]

    asyncio.run(play())
