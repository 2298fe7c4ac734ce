"""How much one client, and all of them, may ask of this process: places that are held, and rates.

An owner is a client's id, or the address of somebody without a token. All methods run on the event loop.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachetools import LRUCache

from shared.problems import Busy, TooManyRequests

__all__ = ["Places", "Rate"]

OWNERS = 10_000
"""Whose rates are remembered; of more, those that were seen last."""
MINUTE = 60.0


class Places:
    """At most ``most`` at a time, of which one owner holds at most ``most_each``.

    ``what`` they are for is said in the refusal, with the names of the settings.
    """

    def __init__(
        self, what: str, *, most: int, setting: str, most_each: int | None = None, setting_each: str = ""
    ) -> None:
        self._what = what
        self._most, self._setting = most, setting
        self._most_each, self._setting_each = most_each, setting_each
        self._held: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def hold(self, owner: str | None) -> Iterator[None]:
        """A place for the block; see :meth:`take`."""
        self.take(owner)
        try:
            yield
        finally:
            self.give_back(owner)

    def take(self, owner: str | None) -> None:
        """A place until :meth:`give_back`; an owner of None counts only for all. TooManyRequests, Busy."""
        if owner is not None and self._most_each is not None and self._held[owner] >= self._most_each:
            raise TooManyRequests(
                f"{owner} has {self._most_each} {self._what} open already",
                hint="End one of them first.",
                limit=self._setting_each,
                retry_after_seconds=2,
            )
        if self.taken >= self._most:
            raise Busy(
                f"{self._most} {self._what} are open, as many as this coordinator takes",
                hint="Try again in a moment.",
                limit=self._setting,
            )
        self.taken += 1
        if owner is not None:
            self._held[owner] += 1

    def give_back(self, owner: str | None) -> None:
        self.taken -= 1
        if owner is not None:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]


class Rate:
    """For each owner a bucket of ``per_minute`` tokens, which fills evenly in a minute."""

    def __init__(
        self,
        what: str,
        *,
        per_minute: int,
        setting: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._per_minute = per_minute
        self._setting = setting
        self._monotonic = monotonic
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(OWNERS)  # tokens, and when that was

    def check(self, owner: str) -> None:
        """Raises :class:`TooManyRequests` if the owner's bucket is empty; takes nothing."""
        left = self._left(owner)
        if left < 1.0:
            wait = math.ceil((1.0 - left) * MINUTE / self._per_minute)
            raise TooManyRequests(
                f"{owner} has sent more than {self._per_minute} {self._what} in a minute",
                hint=f"Try again in {wait} s.",
                limit=self._setting,
                retry_after_seconds=wait,
            )

    def take(self, owner: str) -> None:
        """Take a token; raises :class:`TooManyRequests` where there is none."""
        left = self._left(owner)
        if left < 1.0:
            self.check(owner)
        self._buckets[owner] = max(left - 1.0, 0.0), self._monotonic()

    def charge(self, owner: str) -> None:
        """Take a token for what has happened already; the bucket may be empty afterwards, not less."""
        self._buckets[owner] = max(self._left(owner) - 1.0, 0.0), self._monotonic()

    def _left(self, owner: str) -> float:
        known = self._buckets.get(owner)
        if known is None:
            return float(self._per_minute)
        tokens, at = known
        return min(tokens + (self._monotonic() - at) * self._per_minute / MINUTE, float(self._per_minute))
