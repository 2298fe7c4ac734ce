"""Clocks that a test sets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from server.clock import Clock

__all__ = ["clock_by"]


def clock_by(now: Callable[[], dt.datetime]) -> Clock:
    """Time that passes as ``now`` says: when it jumps, that time has passed, and the clock was not set."""
    return Clock(now, lambda: now().timestamp())
