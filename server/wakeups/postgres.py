"""LISTEN/NOTIFY: coordinator processes on one PostgreSQL wake each other's clients at once.

A lost connection costs only time: it is opened again, everybody is woken once, and with a relay in
use long polls also look again by themselves every few seconds. Whoever may connect to the database may
notify: a message that is none of ours is passed over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from server.background import Told
from server.database.session import connection_options, parse_url
from server.wakeups.hub import Hub

__all__ = ["PostgresRelay", "read_payload"]

CHANNEL = "feddisco"
RECONNECT_SECONDS = 1.0
LONGEST_PAYLOAD = 7000  # PostgreSQL takes less than 8000 bytes
QUEUE = 10_000
GATHER_SECONDS = 0.005
"""What is committed meanwhile is told with the first of it."""
MOST_AT_ONCE = 100
_NOTIFY = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"

Connection = psycopg.AsyncConnection[Any]

log = logging.getLogger("feddisco.relay")


class PostgresRelay:
    """One connection that listens and one that notifies, each with its task on the event loop."""

    def __init__(self, url: str, hub: Hub) -> None:
        plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._address = make_conninfo(plain, **connection_options(parse_url(url)))
        self._hub = hub
        self._sender = secrets.token_hex(8)
        self._outgoing: asyncio.Queue[str] = asyncio.Queue(QUEUE)
        self._unsent: list[str] = []  # what was under way when the connection was lost

    def send(self, message: dict[str, Any]) -> None:
        payload = json.dumps({**message, "from": self._sender})
        if len(payload) > LONGEST_PAYLOAD:
            payload = json.dumps({"everyone": True, "run": message.get("run"), "from": self._sender})
        try:
            self._outgoing.put_nowait(payload)
        except asyncio.QueueFull:
            log.warning(
                "the database has not answered for a while: other coordinators are not told of a change"
            )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_forever(self._listen))
            tasks.create_task(self._run_forever(self._notify))

    async def _run_forever(self, work: Callable[[Connection, Told], Awaitable[None]]) -> None:
        told = Told(log, "no connection for LISTEN/NOTIFY, trying again")
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._address, autocommit=True
                ) as connection:
                    await work(connection, told)
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:  # or a standby
                told.fault(str(error).strip().partition("\n")[0])
            except Exception as error:  # without this loop others' clients would be told late for ever
                told.fault(repr(error), is_ours=True)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, connection: Connection, told: Told) -> None:
        await connection.execute(f"LISTEN {CHANNEL}")
        told.success()
        self._hub.hear({"everyone": True, "run": None})
        async for notice in connection.notifies():
            message = read_payload(notice.payload)
            if message is None:
                log.warning("a notification that no coordinator sent is passed over: %.200r", notice.payload)
            elif message.pop("from") != self._sender:
                self._hub.hear(message)

    async def _notify(self, connection: Connection, told: Told) -> None:
        while True:
            if not self._unsent:
                told.success()
                self._unsent.append(await self._outgoing.get())
                await asyncio.sleep(GATHER_SECONDS)
            while len(self._unsent) < MOST_AT_ONCE and not self._outgoing.empty():
                self._unsent.append(self._outgoing.get_nowait())
            await connection.execute(_NOTIFY, (CHANNEL, self._unsent))
            self._unsent = []


def read_payload(payload: str) -> dict[str, Any] | None:
    """A message of :class:`server.wakeups.hub.Hub` with its sender under ``from``; None if it is none.

    >>> read_payload('{"wake": ["north"], "from": "ab12"}')
    {'wake': ['north'], 'from': 'ab12'}
    >>> read_payload('{"wake": "north", "from": "ab12"}') is None
    True
    """
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(message, dict) and isinstance(message.get("from"), str)):
        return None
    run, progress = message.get("run"), message.get("progress")
    names = message.get("wake", []), message.get("about", [])
    is_ours = (
        all(isinstance(clients, list) for clients in names)
        and all(isinstance(client, str) for clients in names for client in clients)
        and isinstance(run, str | None)
        and isinstance(progress, dict | None)
    )
    return message if is_ours else None
