"""Thread pools for blocking work, so that the event loop never waits for a disk or a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["Threads"]

LONG = 8
STREAMS = 2

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Pools: ``count`` threads for transactions and small files, others for slow work, others for viewers.

    SQLite's writers queue up inside the store, not here. ``work`` runs to its end even if the caller is
    cancelled meanwhile.
    """

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "feddisco-io")
        self._long = ThreadPoolExecutor(LONG, "feddisco-long")
        self._streams = ThreadPoolExecutor(STREAMS, "feddisco-streams")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For work of milliseconds."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    async def run_long(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For large files and whatever imports PyTorch, so that no long poll waits behind it."""
        return await asyncio.get_running_loop().run_in_executor(self._long, partial(work, *args, **kwargs))

    async def run_for_viewers(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For event streams, so that no client waits behind those who only look."""
        return await asyncio.get_running_loop().run_in_executor(self._streams, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Wait for what is under way."""
        self._streams.shutdown()
        self._long.shutdown()
        self._pool.shutdown()
