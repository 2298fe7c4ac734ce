"""Tasks that live as long as the process, and what becomes of the process without one of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shared.problems import ServiceFault

__all__ = ["Background", "Told", "repeat"]

MOST_SAID = 20
"""Different faults of one work until it succeeds."""

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

    ``failure`` is logged before the reason: "cannot look at deadlines now"; see :class:`Told`. ``at_once``:
    also now.
    """
    told = Told(log, failure)
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            await work()
        except ServiceFault as fault:
            told.fault(fault.detail)
        except Exception as error:  # without this loop it would never be done again
            told.fault(repr(error), is_ours=True)
        else:
            told.success()
        await asyncio.sleep(seconds)


class Told:
    """Of what is tried again and again, each fault is a line of the log once, and then that it is over.

    ``failure``: what cannot be done meanwhile, in the words of :func:`repeat`.
    """

    def __init__(self, log: logging.Logger, failure: str) -> None:
        self._log = log
        self._failure = failure
        self._since = 0.0
        self._said: set[str] = set()

    def fault(self, why: str, *, is_ours: bool = False) -> None:
        """``is_ours``: with the traceback of the exception that is being handled."""
        if not self._said:
            self._since = time.monotonic()
        if why in self._said or len(self._said) >= MOST_SAID:
            return
        self._said.add(why)
        if is_ours:
            self._log.exception("%s", self._failure)
        else:
            self._log.warning("%s: %s", self._failure, why)

    def success(self) -> None:
        if self._said:
            self._log.info("over after %.0f s: %s", time.monotonic() - self._since, self._failure)
            self._said.clear()
