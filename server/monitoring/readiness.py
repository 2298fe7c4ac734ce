"""Whether a process can serve: checks that a database or disk out of reach does not hold up for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from server.threads import Threads
from shared.problems import Problem, StorageUnavailable

__all__ = ["LIMIT", "Readiness"]

LIMIT = 3.0
"""Seconds that whoever asks is kept waiting."""


class Readiness:
    """Looks once for all who ask meanwhile: what hangs holds one thread, however many probes come."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._look: asyncio.Task[None] | None = None
        self._found: dict[str, str] = {}

    async def find(self, checks: Mapping[str, Callable[[], object]]) -> dict[str, str]:
        """Of each check ``ok``, or what is wrong as anybody may read it; always give the same checks."""
        if self._look is None or self._look.done():
            self._found = {}
            self._look = asyncio.create_task(self._threads.run_long(_run, checks, self._found))
        found = self._found
        await asyncio.wait([self._look], timeout=LIMIT)
        late = f"{StorageUnavailable.code}: no answer within {LIMIT:g} s"
        return {name: found.get(name, late) for name in checks}


def _run(checks: Mapping[str, Callable[[], object]], found: dict[str, str]) -> None:
    for name, check in checks.items():
        found[name] = _summarise(check)


def _summarise(check: Callable[[], object]) -> str:
    try:
        check()
    except StorageUnavailable as problem:  # anybody may ask
        return f"{problem.code}: {problem.public}"
    except Problem as problem:
        return f"{problem.code}: {problem.detail}"
    except Exception as error:
        return f"failed: {type(error).__name__}"
    return "ok"
