"""What the handler of a signal raises, raised again where Python would forget it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["repeat_ignored"]

SOON = 0.05
"""Seconds, in which whatever it was that ignored the exception ends."""


@contextmanager
def repeat_ignored(
    raised: type[BaseException], again: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Inside, an exception ``raised`` that Python ignored has ``again`` called a moment later.

    Handlers of signals run between any two instructions of the main thread: also in a finaliser, or in what
    is called when the collector removes an object, of which exceptions are printed and forgotten. Whoever
    waits for something else would then wait for ever.

    Only in the main thread. The moment is told by SIGALRM; where somebody else uses that, as a timeout of
    tests does, nothing is repeated.
    """
    if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    hook = sys.unraisablehook

    def note(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not None and issubclass(ignored.exc_type, raised):
            signal.setitimer(signal.ITIMER_REAL, SOON)
        else:
            hook(ignored)

    signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
