"""Python's collector of cyclic garbage, set for a process that holds thousands of requests.

By default it looks through the newest objects at every 700 that are there more than before, which a few polls
are; that was a quarter of what a waiting poll cost. What the program itself consists of is never garbage, and
is not looked through again.
"""

from __future__ import annotations

import gc

__all__ = ["set_collector", "spare_program"]

THRESHOLDS = (10_000, 10, 10)


def set_collector() -> None:
    """For a process that is a coordinator and nothing else."""
    gc.set_threshold(*THRESHOLDS)


def spare_program() -> None:
    """What is there now stays, if this process is a coordinator and nothing else. On any thread."""
    if gc.get_threshold() == THRESHOLDS:
        gc.freeze()
