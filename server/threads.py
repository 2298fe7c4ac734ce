"""Where blocking work goes, so that the event loop never waits for a disk or a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool for transactions and files. Writers of SQLite queue up inside the store, not here."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "feddisco-io")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work`` is carried through even if the caller goes away meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()
