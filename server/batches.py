"""Questions that arrive together are asked together: one hop to a thread and one transaction for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from shared.problems import ServiceFault

__all__ = ["Batches"]

MOST = 256
"""Questions in a batch: those behind it do not wait for long."""

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Batches(Generic[Key, Answer]):
    """``ask`` is given keys and returns the answer to each. One batch is under way; who comes meanwhile is
    in the next. Used on the event loop.

    An error that is not of the storage is that of one key, perhaps: it is looked for, and the others are
    answered.
    """

    def __init__(self, ask: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Answer]]]) -> None:
        self._ask = ask
        self._waiting: dict[Key, asyncio.Future[Answer]] = {}
        self._running: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Answer:
        """The answer, which was asked for after this call. Raises what ``ask`` raises."""
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_notice)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(future)  # another may wait for the same

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # all who were woken in this moment join
                keys = list(self._waiting)[:MOST]
                await self._answer({key: self._waiting.pop(key) for key in keys})
        finally:
            self._running = None

    async def _answer(self, batch: Mapping[Key, asyncio.Future[Answer]]) -> None:
        try:
            answers = await self._ask(list(batch))
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, ServiceFault):
                waiting = list(batch.items())
                for half in (waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]):
                    await self._answer(dict(half))
                return
            for future in batch.values():
                future.set_exception(error)
        else:
            for key, future in batch.items():
                future.set_result(answers[key])


def _notice(future: asyncio.Future[Answer]) -> None:
    """Asyncio would complain about an error that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
