"""What a round costs beside the training: real coordinator, real worker processes, no local steps.

    python -m benchmarks.overhead            62,006 parameters
    python -m benchmarks.overhead --large    11.2 M parameters, 45 MB a model

    python -m benchmarks.overhead -- --precision bfloat16    with further flags of every worker

Prints one JSON line. Seconds are between the ends of consecutive rounds (median, without the first); bytes
are what the loopback interface carried, TCP/IP headers included, so run it on a quiet machine. It ends with
code 1 and the reason when a worker declines or a process dies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import Deployment, deployment
from feddisco.admin import make_run_request
from shared.config import RunConfig
from shared.schemas import RoundView, RunStatus

TASK = "benchmarks.synthetic:Noise"
ALGORITHM = "benchmarks.synthetic:Nudge"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="11.2 M parameters instead of 62,006")
    parser.add_argument("--rounds", type=int, help="default: 50, or 8 with --large")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--database-url", help="PostgreSQL instead of SQLite")
    parser.add_argument("--keep", type=Path, help="keep databases, blobs and logs in this folder")
    parser.add_argument("worker_flags", nargs="*", help="further flags of every worker, after --")
    chosen = parse(parser, {"rounds": 6, "workers": 2})
    print_result(
        lambda folder: measure(
            chosen.keep or folder,
            large=chosen.large,
            rounds=chosen.rounds or (8 if chosen.large else 50),
            workers=chosen.workers,
            database_url=chosen.database_url,
            worker_flags=chosen.worker_flags,
        )
    )


def measure(
    folder: Path,
    *,
    large: bool,
    rounds: int,
    workers: int,
    database_url: str | None,
    worker_flags: Sequence[str] = (),
    secure: Mapping[str, Any] | None = None,
    crew: bool = False,
) -> dict[str, Any]:
    """``crew``: the workers are threads of one process, and ``secure`` is the run's setting."""
    flags = ("--task", TASK, "--algorithms", ALGORITHM, *worker_flags)
    with deployment(folder, database_url) as running:
        running.admin.create(make_run_request(running.admin, _config(large, rounds, workers, secure)))
        if crew:
            running.start_crew(workers, *flags)
        else:
            for number in range(workers):
                running.start_worker(f"worker-{number:02}", *flags)
        views, first, last = _follow(running)
    return _result(views, first, last, large=large, workers=workers, database_url=database_url)


def _config(large: bool, rounds: int, workers: int, secure: Mapping[str, Any] | None) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "overhead",
            "task": TASK,
            "task_options": {"size": "large" if large else "small"},
            "rounds": rounds,
            "min_clients": workers,
            "quorum": workers,
            "algorithm": ALGORITHM,
            "local": {"steps": 0},
            "weighting": {"kind": "disco"},
            "evaluate_every": 0,
            "secure": secure,
        }
    )


@dataclass(frozen=True)
class Sample:
    """Counters at one moment: rounds done, loopback bytes, CPU seconds by kind of process."""

    rounds: int
    bytes: int
    coordinator: float
    workers: float

    @classmethod
    def now(cls, rounds: int, running: Deployment) -> Sample:
        used = {name: _cpu_seconds(process.pid) for name, process in running.processes.running.items()}
        coordinator = used.pop("coordinator")
        return cls(rounds, _loopback_bytes(), coordinator, sum(used.values()))


def _follow(running: Deployment) -> tuple[list[RoundView], Sample, Sample]:
    """All rounds, and the counters after one of the first rounds and after the last."""
    first: Sample | None = None
    while True:
        run = running.progress("overhead")
        sample = Sample.now(run.completed_rounds, running)
        if run.status is RunStatus.COMPLETED:
            if first is None or first.rounds == sample.rounds:
                raise Failed(f"{run.rounds} rounds were over before they could be measured: ask for more.")
            return running.admin.rounds("overhead"), first, sample
        if first is None and run.completed_rounds >= 1:
            first = sample
        time.sleep(0.05 if first is None else 1.0)  # to read the run costs the coordinator, too


def find_p90(seconds: Sequence[float]) -> float:
    """The 90th percentile; of one measurement that one."""
    return statistics.quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0]


def _result(
    views: list[RoundView],
    first: Sample,
    last: Sample,
    *,
    large: bool,
    workers: int,
    database_url: str | None,
) -> dict[str, Any]:
    ends = [view.completed_at for view in views if view.completed_at is not None]
    seconds = [(after - before).total_seconds() for before, after in pairwise(ends)]
    parameters = 11_220_132 if large else 62_006
    rounds = last.rounds - first.rounds
    return {
        "benchmark": "round overhead, large" if large else "round overhead",
        "seconds_a_round": round(statistics.median(seconds), 4),
        "seconds_a_round_p90": round(find_p90(seconds), 4),
        "rounds": len(ends),
        "workers": workers,
        "parameters": parameters,
        "bytes_a_round": (last.bytes - first.bytes) // rounds,
        "bytes_of_an_update": max(row.bytes or 0 for row in views[-1].ledger),
        "bytes_of_models_a_round": 2 * workers * parameters * 4,
        "coordinator_cpu_seconds_a_round": round((last.coordinator - first.coordinator) / rounds, 4),
        "one_workers_cpu_seconds_a_round": round((last.workers - first.workers) / rounds / workers, 4),
        "database": "PostgreSQL" if database_url else "SQLite",
        **machine(),
        "torch": torch.__version__,
        "httpx": httpx.__version__,
    }


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


if __name__ == "__main__":
    main()
