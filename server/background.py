"""Tasks that live as long as the process, and what becomes of the process without one of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shared.problems import ServiceFault

__all__ = ["Background", "repeat"]

log = logging.getLogger("feddisco")


class Background:
    """Starts the tasks, knows which has ended, and cancels the others at the end. On the event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_end)

    def check(self) -> None:
        """For readiness. Raises :class:`ServiceFault` that names the tasks that have ended."""
        ended = [name for name, task in self._tasks.items() if task.done()]
        if ended:
            raise ServiceFault(
                f"a background task has ended: {', '.join(ended)}",
                hint="The log has the reason. Start the coordinator again; nothing is lost.",
            )

    async def cancel(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a background task has ended: %s", error, exc_info=error)


async def repeat(
    seconds: float, work: Callable[[], Awaitable[object]], failure: str, *, at_once: bool = False
) -> None:
    """Do the work again and again, until cancelled; whatever it raises, it is done again.

    ``failure`` is logged before the reason: "cannot look at deadlines now". ``at_once``: also now.
    """
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            await work()
        except ServiceFault as fault:
            log.warning("%s: %s", failure, fault.detail)
        except Exception:  # without this loop it would never be done again
            log.exception("%s", failure)
        await asyncio.sleep(seconds)
