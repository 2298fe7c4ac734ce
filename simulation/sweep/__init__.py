"""Many runs side by side, one process each, each resumable; two sweeps never do the same run at once."""

from __future__ import annotations

import fcntl
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from shared.config import RunConfig
from shared.problems import Problem
from shared.training import Diverged
from simulation.engines.processes import use_one_thread
from simulation.kernels import KernelsName
from simulation.run import simulate

__all__ = ["Planned", "Swept", "claim_results", "say_end", "sweep"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A run, its result file, where its data lie, and the round after which to stop (None: the last).

    ``cache`` is a folder where decoded data are kept for all runs.
    """

    config: RunConfig
    out: Path
    source: Path | None = None
    cache: Path | None = None
    until: int | None = None
    kernels: KernelsName = "torch"
    device: str = "cpu"


@dataclass(frozen=True)
class Swept:
    """How a planned run ended; ``detail`` is the model's digest, or the reason in one sentence."""

    name: str
    state: Literal["done", "busy", "failed"]
    detail: str


def sweep(runs: Sequence[Planned], *, processes: int, say: Say = print) -> list[Swept]:
    """Carry out the runs in their order, at most ``processes`` at a time; the ends, in the runs' order.

    A run that fails, or that another sweep is doing, does not keep the others from theirs. A call that
    was interrupted is repeated as it is: every run goes on after its last completed round.
    """
    if processes == 1:
        return [say_end(_carry_out(planned, say), say) for planned in runs]
    context = multiprocessing.get_context("spawn")
    # A process per run: what one run holds in memory is gone when the next one begins.
    with ProcessPoolExecutor(processes, context, use_one_thread, max_tasks_per_child=1) as pool:
        pending = [pool.submit(_carry_out, planned, _flushed) for planned in runs]
        names = {id(future): planned.config.name for future, planned in zip(pending, runs, strict=True)}
        for future in as_completed(pending):
            say_end(_read_end(names[id(future)], future), say)
        return [_read_end(names[id(future)], future) for future in pending]


@contextmanager
def claim_results(out: Path) -> Iterator[bool]:
    """Whether this process alone may write ``out``; the claim ends with the block or the process."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(out.name + ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _carry_out(planned: Planned, say: Say) -> Swept:
    name = planned.config.name
    with claim_results(planned.out) as ours:
        if not ours:
            return Swept(name, "busy", "another process is doing it")
        try:
            digest = simulate(
                planned.config,
                source=planned.source,
                out=planned.out,
                cache=planned.cache,
                kernels=planned.kernels,
                device=planned.device,
                until=planned.until,
                say=say,
            )
        except (Problem, Diverged) as fault:
            return Swept(name, "failed", str(fault))
        return Swept(name, "done", digest)


def _read_end(name: str, future: Future[Swept]) -> Swept:
    try:
        return future.result()
    except BrokenProcessPool:
        return Swept(name, "failed", "a process was killed (out of memory?); repeat the call to go on")


def say_end(swept: Swept, say: Say) -> Swept:
    """Say how a run ended."""
    say(f"{swept.name}: {swept.state}" + ("" if swept.state == "done" else f", {swept.detail}"))
    return swept


_flushed: Say = partial(print, flush=True)
