"""A coordinator and workers as processes of a benchmark, which ends them, and ends when one of them does."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.command import Failed
from feddisco.admin import AdminClient
from feddisco.demo import Processes
from shared.schemas import RunStatus, RunView
from worker.diagnose import diagnose

__all__ = ["JOIN_TOKEN", "Deployment", "deployment"]

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent
ADMIN_TOKEN, JOIN_TOKEN = "benchmark-admin-token", "benchmark-join-token"
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Deployment:
    """The processes by name: ``coordinator``, and the workers."""

    processes: Processes
    url: str
    admin: AdminClient

    def start_worker(self, name: str, *flags: str) -> None:
        state = str(self.processes.folder / name)
        self.processes.start(name, "worker", "--url", self.url, "--name", name, "--state", state, *flags)

    def start_crew(self, many: int, *flags: str) -> None:
        """Workers as threads of one process (:mod:`benchmarks.crew`)."""
        folder = str(self.processes.folder)
        self.processes.start_module("crew", "benchmarks.crew", self.url, folder, str(many), *flags)

    def progress(self, run: str) -> RunView:
        """The run as it stands.

        Raises:
            Failed: it cannot end well any more: a client declined or left, a process ended, it is paused.
        """
        view = self.admin.run(run)
        if lost := next((one for one in view.enrolments if one.status.is_gone), None):
            raise Failed(f"The client {lost.client} has {lost.status.value} the run {run}: {lost.reason}")
        self.check_processes()
        if view.status in (RunStatus.PAUSED, RunStatus.STOPPED):
            raise Failed(f"The run {run} is {view.status.value}: {view.reason}")
        return view

    def check_processes(self) -> None:
        """Raise :class:`Failed` with the log of a process that has ended, whatever its exit code."""
        for name, process in self.processes.running.items():
            if (code := process.poll()) is not None:
                raise Failed(
                    f"{name} ended early (exit code {code}). Its last lines:\n{self.processes.tail(name)}"
                )

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            self.check_processes()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=5).is_success:
                    return
            time.sleep(0.05)
        raise Failed(f"The coordinator was not ready in time.\n{self.processes.tail('coordinator')}")


@contextmanager
def deployment(
    folder: Path, database_url: str | None = None, *, tree: Path | None = None
) -> Iterator[Deployment]:
    """A coordinator that is ready, on SQLite unless ``database_url`` says otherwise.

    ``tree``: a checkout of this repository, of whose program it is; None: this one.

    Raises:
        Failed: it did not start, or ended in the block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    processes = Processes(folder, _environment(folder, database_url, tree or ROOT))
    url = f"http://{HOST}:{port}"
    try:
        processes.start("coordinator", "server", "--host", HOST, "--port", str(port))
        with AdminClient(url, token=ADMIN_TOKEN) as admin:
            running = Deployment(processes, url, admin)
            running.wait_until_ready()
            yield running
    except (httpx.HTTPError, OSError) as error:
        raise Failed(f"{diagnose(error, url).sentence}\n{processes.tail('coordinator')}") from error
    finally:
        processes.stop()


def _environment(folder: Path, database_url: str | None, tree: Path) -> dict[str, str]:
    environment = {
        "FEDDISCO_DATA_FOLDER": str(folder / "coordinator"),
        "FEDDISCO_ADMIN_TOKEN": ADMIN_TOKEN,
        "FEDDISCO_JOIN_TOKEN": JOIN_TOKEN,
        "FEDDISCO_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tree),
        "PYTHONSAFEPATH": "1",  # or else the working directory would go before it
        "TMPDIR": str(folder),
    }
    return environment | ({"FEDDISCO_DATABASE_URL": database_url} if database_url else {})


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])
