"""Ways to map training over a round's clients. The result does not depend on the engine.

``grouped`` (:mod:`simulation.grouped`) and ``native`` (:mod:`simulation.native`) sum floats in another order:
equal but for rounding.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from shared.config import RunConfig
from simulation.jobs import Done, Job, Workshop, work_in_process

__all__ = ["ROUNDING", "Engine", "EngineName", "InProcess", "OpenEngine", "Processes", "one_thread"]

EngineName = Literal["in-process", "processes", "grouped", "native", "ray"]

ROUNDING: frozenset[EngineName] = frozenset({"grouped", "native"})
"""The engines whose results differ from those of the others, and from each other's, by rounding."""


class Engine(Protocol):
    """What trains a round's clients."""

    def map(self, jobs: Sequence[Job]) -> list[Done]:
        """Carry out the jobs; results in their order."""
        ...


OpenEngine = AbstractContextManager[Engine]
"""An engine whose processes or connection end with the block."""


class InProcess:
    """One client after the other, in this process."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def map(self, jobs: Sequence[Job]) -> list[Done]:
        return [self._workshop.work(job) for job in jobs]


class Processes:
    """A pool of processes with one thread each (PyTorch's threads do not add up over small models)."""

    def __init__(self, config: RunConfig, source: Path | None, cache: Path | None, count: int) -> None:
        self._pool = ProcessPoolExecutor(
            count, mp_context=multiprocessing.get_context("spawn"), initializer=one_thread
        )
        self._work = partial(work_in_process, "pool", config.model_dump_json(), source, cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, jobs: Sequence[Job]) -> list[Done]:
        return list(self._pool.map(self._work, jobs))


def one_thread() -> None:
    """Initialise a pool's process."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
