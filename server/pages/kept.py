"""Pages made once for all who may see the same: what costs a rendering is a change, not a viewer.

An open page asks for itself again whenever something happens (``static/live.js``). Such a request waits
until the page may be made anew, which is at most twice a second (less often while many pages are open), and
then takes what was made for everybody who waited. Who comes to a page by hand waits for nothing, and sees
what is known at that moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from server.web.security import Person

__all__ = ["INTERVAL_SECONDS", "REFETCH", "KeptPages", "Made", "PageKey"]

REFETCH: Final = "Feddisco-Refetch"
"""The header by which a page's script says that it has the page already."""

INTERVAL_SECONDS = 0.5
"""Between two renderings of one page for its scripts, and at least three times as long as one takes."""
KEPT_SECONDS = 1.0
"""For who comes by hand while nothing has happened: heartbeats, which are no events, may be so old."""
KEPT_PAGES = 64

_CLOCKS = re.compile(rb' data-now="[^"]*"|As of \d\d:\d\d:\d\d|(?<=data-clock>)[^<]*')
"""What differs between two renderings of the same: the script keeps it right by itself."""


@dataclass(frozen=True)
class PageKey:
    """What a rendering depends on beside the state of the run: its address, and who may see what."""

    address: str
    person: Person
    is_signed_in: bool


@dataclass(frozen=True)
class Made:
    """A rendering (UTF-8), and when it began, by the monotonic clock. ``etag`` says nothing of its clocks."""

    html: bytes
    etag: str
    version: int
    began: float
    seconds: float


class KeptPages:
    """The newest rendering of each page; all methods run on the event loop.

    ``call`` runs a function on the viewers' threads, ``find_version`` gives a run's newest event (None: that
    of all runs), ``find_interval`` the seconds between two renderings for scripts, if they are more than
    :data:`INTERVAL_SECONDS`. ``sleep``: until it is time, or the process ends.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], str]], Awaitable[str]],
        find_version: Callable[[str | None], Awaitable[int]],
        find_interval: Callable[[], float] = lambda: INTERVAL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._call = call
        self._find_interval = find_interval
        self._sleep = sleep
        self._find_version = find_version
        self._made: LRUCache[PageKey, Made] = LRUCache(KEPT_PAGES)
        self._locks: LRUCache[PageKey, asyncio.Lock] = LRUCache(KEPT_PAGES)

    async def get(self, key: PageKey, run: str | None, make: Callable[[], str], *, is_refetch: bool) -> Made:
        """The page as it is now, or was at most ``INTERVAL_SECONDS`` ago for who comes by hand.

        Raises what ``make`` raises; nothing is kept then.
        """
        came = time.monotonic()
        if is_refetch and (known := self._made.get(key)) is not None:
            await self._sleep(max(0.0, self._find_next(known) - came))
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._made.get(key)
            if known is not None and known.began >= came:
                return known
            version = await self._find_version(run)
            # a script comes since something happened, and a heartbeat changes no version
            is_same = known is not None and known.version == version and not is_refetch
            if known is not None and is_same and came - known.began < KEPT_SECONDS:
                return known
            return await self._make(key, make, version)

    def _find_next(self, known: Made) -> float:
        """When the page may be made anew for scripts."""
        return known.began + max(INTERVAL_SECONDS, self._find_interval(), 3 * known.seconds)

    async def _make(self, key: PageKey, make: Callable[[], str], version: int) -> Made:
        began = time.monotonic()
        html = (await self._call(make)).encode()  # once, for everybody
        digest = hashlib.sha256(_CLOCKS.sub(b"", html)).hexdigest()
        made = Made(html, f'"{digest[:32]}"', version, began, time.monotonic() - began)
        self._made[key] = made
        return made
