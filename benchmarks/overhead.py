"""What a round costs beside the training: real coordinator, real worker processes, no local steps.

    python -m benchmarks.overhead            62,006 parameters
    python -m benchmarks.overhead --large    11.2 M parameters, 45 MB a model

Prints one JSON line. Seconds are between the ends of consecutive rounds (median, without the first); bytes
are what the loopback interface carried, TCP/IP headers included, so run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import torch

from feddisco.admin import Admin, run_request
from feddisco.demo import Processes
from shared.config import RunConfig
from shared.schemas import RoundView, RunStatus
from worker.diagnose import diagnose

HOST = "127.0.0.1"
TASK = "benchmarks.synthetic:Noise"
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="11.2 M parameters instead of 62,006")
    parser.add_argument("--rounds", type=int, help="default: 50, or 8 with --large")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--database-url", help="PostgreSQL instead of SQLite")
    parser.add_argument("--keep", type=Path, help="keep databases, blobs and logs in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feddisco-overhead-") as folder:
        result = measure(
            arguments.keep or Path(folder),
            large=arguments.large,
            rounds=arguments.rounds or (8 if arguments.large else 50),
            workers=arguments.workers,
            database_url=arguments.database_url,
        )
    print(json.dumps(result))


def measure(
    folder: Path, *, large: bool, rounds: int, workers: int, database_url: str | None
) -> dict[str, object]:
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    processes = Processes(folder, _environment(folder, database_url))
    url = f"http://{HOST}:{port}"
    try:
        processes.start("coordinator", "server", "--host", HOST, "--port", str(port))
        with Admin(url, token=processes.environment["FEDDISCO_ADMIN_TOKEN"]) as admin:
            _until_ready(processes, url)
            admin.create(run_request(admin, _config(large, rounds, workers)))
            for number in range(workers):
                _start_worker(processes, url, f"worker-{number:02}")
            views, first, last = _follow(processes, admin)
    finally:
        processes.stop()
    return _result(views, first, last, large=large, workers=workers, database_url=database_url)


def _config(large: bool, rounds: int, workers: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "overhead",
            "task": TASK,
            "task_options": {"size": "large" if large else "small"},
            "rounds": rounds,
            "min_clients": workers,
            "quorum": workers,
            "algorithm": "benchmarks.synthetic:Nudge",
            "local": {"steps": 0},
            "weighting": {"kind": "disco"},
            "evaluate_every": 0,
        }
    )


def _start_worker(processes: Processes, url: str, name: str) -> None:
    state = processes.folder / name
    processes.start(name, "worker", "--url", url, "--name", name, "--state", str(state), "--task", TASK)


@dataclass(frozen=True)
class Sample:
    """Counters at one moment: rounds done, loopback bytes, CPU seconds by kind of process."""

    rounds: int
    bytes: int
    coordinator: float
    workers: float

    @classmethod
    def now(cls, rounds: int, processes: Processes) -> Sample:
        used = {name: _cpu_seconds(process.pid) for name, process in processes.running.items()}
        coordinator = used.pop("coordinator")
        return cls(rounds, _loopback_bytes(), coordinator, sum(used.values()))


def _follow(processes: Processes, admin: Admin) -> tuple[list[RoundView], Sample, Sample]:
    """All rounds, and the counters after one of the first rounds and after the last."""
    first: Sample | None = None
    while True:
        run = admin.run("overhead")
        if name := processes.failed():
            sys.exit(f"{name} ended early:\n{processes.tail(name)}")
        sample = Sample.now(run.completed_rounds, processes)
        if run.status.is_terminal:
            assert run.status is RunStatus.COMPLETED, run.reason
            assert first is not None
            return admin.rounds("overhead"), first, sample
        if first is None and run.completed_rounds >= 1:
            first = sample
        time.sleep(0.5)


def _result(
    views: list[RoundView],
    first: Sample,
    last: Sample,
    *,
    large: bool,
    workers: int,
    database_url: str | None,
) -> dict[str, object]:
    ends = [view.completed_at for view in views if view.completed_at is not None]
    seconds = [(after - before).total_seconds() for before, after in pairwise(ends)]
    parameters = 11_220_132 if large else 62_006
    rounds = last.rounds - first.rounds
    return {
        "benchmark": "round overhead, large" if large else "round overhead",
        "seconds_a_round": round(statistics.median(seconds), 4),
        "seconds_a_round_p90": round(statistics.quantiles(seconds, n=10)[-1], 4),
        "rounds": len(ends),
        "workers": workers,
        "parameters": parameters,
        "bytes_a_round": (last.bytes - first.bytes) // rounds,
        "bytes_of_models_a_round": 2 * workers * parameters * 4,
        "coordinator_cpu_seconds_a_round": round((last.coordinator - first.coordinator) / rounds, 4),
        "one_workers_cpu_seconds_a_round": round((last.workers - first.workers) / rounds / workers, 4),
        "database": "PostgreSQL" if database_url else "SQLite",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "httpx": httpx.__version__,
    }


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def _until_ready(processes: Processes, url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).is_success:
                return
        except httpx.HTTPError as error:
            if time.monotonic() > end or processes.failed():
                sys.exit(f"{diagnose(error, url).sentence}\n{processes.tail('coordinator')}")
        time.sleep(0.1)


def _environment(folder: Path, database_url: str | None) -> dict[str, str]:
    environment = {
        "FEDDISCO_DATA_FOLDER": str(folder / "coordinator"),
        "FEDDISCO_ADMIN_TOKEN": "benchmark-admin-token",
        "FEDDISCO_JOIN_TOKEN": "benchmark-join-token",
        "FEDDISCO_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return environment | ({"FEDDISCO_DATABASE_URL": database_url} if database_url else {})


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
