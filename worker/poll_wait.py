"""How long a request for work waits: less, where something on the way cuts requests that are idle.

A cut looks like the death of the coordinator. So the worker asks again at once, without waiting: only if that
is answered was it the waiting that was cut, and only twice after the same time is it a rule.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import httpx

from worker.answers import UnexpectedAnswer

__all__ = ["CUTS", "PollWait"]

CUTS: Final = (UnexpectedAnswer, httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout)
"""What a cut may look like from here; only :meth:`PollWait.is_cut` tells."""

SHORTEST_SECONDS = 0.5
SAME_SECONDS, SAME_SHARE = 1.0, 0.25
SAFE_SHARE = 0.75  # of the time that was allowed
UNKNOWN_SHARE = 0.5  # of the wait, if nothing came back at all


def _may_be_cut(error: Exception) -> bool:
    status = error.status if isinstance(error, UnexpectedAnswer) else HTTPStatus.GATEWAY_TIMEOUT
    return status == HTTPStatus.REQUEST_TIMEOUT or status >= HTTPStatus.INTERNAL_SERVER_ERROR


class PollWait:
    """``seconds`` is how long the next request may wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._suspected: float | None = None  # a cut after so long; the next request is to tell
        self._found: float | None = None  # it was no death of the coordinator
        self._last_cut = ""

    @property
    def seconds(self) -> float:
        return self._seconds if self._suspected is None else 0.0

    def is_cut(self, error: Exception, after: float) -> bool:
        """Whether a request that failed ``after`` so many seconds may have been cut for being idle.

        Then it is to be sent again at once.
        """
        waited = self.seconds
        self._suspected = None
        status = error.status if isinstance(error, UnexpectedAnswer) else 0
        in_between = (
            not status or status == HTTPStatus.REQUEST_TIMEOUT or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )
        if waited <= SHORTEST_SECONDS or after < 2 * SHORTEST_SECONDS or not in_between:
            self._found = None
            return False
        silent = isinstance(error, httpx.ReadTimeout)
        self._suspected = waited if silent else min(after, waited)
        self._last_cut = f"status {status}" if status else type(error).__name__
        return True

    def note_answer(self, after: float) -> str:
        """A request was answered after so many seconds. A sentence to say if the wait is shorter now."""
        suspected, self._suspected = self._suspected, None
        if suspected is None:
            if self._found is not None and after > self._found:
                self._found = None
            return ""
        found, self._found = self._found, suspected
        if found is None or abs(found - suspected) > max(SAME_SECONDS, SAME_SHARE * found):
            return ""
        return self._shorten(min(found, suspected))

    def _shorten(self, allowed: float) -> str:
        share = UNKNOWN_SHARE if allowed >= self._seconds else SAFE_SHARE
        wanted = max(SHORTEST_SECONDS, share * allowed)
        self._seconds = float(int(wanted)) if wanted >= 2.0 else round(wanted, 1)
        self._found = None
        return (
            f"Something on the way, such as a proxy, cuts requests that wait for {allowed:.0f} s "
            f"({self._last_cut}). From now on this worker asks for work every {self._seconds:g} s; "
            f"--wait-seconds {self._seconds:g} does so from the start."
        )
