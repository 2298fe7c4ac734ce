"""SIGTERM and SIGINT: end at once where nothing is lost, and after the current batch while training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from shared.interruptions import repeat_ignored

__all__ = ["Shutdown", "ShutdownRequested"]


class ShutdownRequested(BaseException):
    """Raised in the main thread; like KeyboardInterrupt, not an error to catch."""


class Shutdown:
    """``requested`` is True once the process was asked to end."""

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Take over the two signals (only the main thread can; elsewhere this does nothing)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with repeat_ignored(ShutdownRequested, self._raise_again):
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if not self._deferred or again:  # the second signal does not wait for the batch
            raise ShutdownRequested

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            raise ShutdownRequested

    def check(self) -> None:
        """Raise :class:`ShutdownRequested` if the process was asked to end, and somebody's code caught it."""
        if self.requested:
            raise ShutdownRequested

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Inside, ``requested`` is only set; at the end :class:`ShutdownRequested` is raised if it is."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.requested:
            raise ShutdownRequested
