"""The engine ``processes``: a round's clients side by side on this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

from simulation.jobs import ClientResult, Job, WorkbenchSpec, carry_out_in_process

__all__ = ["Processes", "use_one_thread"]


class Processes:
    """A pool of processes with one thread each (PyTorch's threads do not add up over small models)."""

    def __init__(self, spec: WorkbenchSpec, count: int) -> None:
        self._pool = ProcessPoolExecutor(
            count, mp_context=multiprocessing.get_context("spawn"), initializer=use_one_thread
        )
        self._carry_out = partial(carry_out_in_process, spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, jobs: Sequence[Job]) -> list[ClientResult]:
        return list(self._pool.map(self._carry_out, jobs))


def use_one_thread() -> None:
    """Initialise a process that is one of many on its machine."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
