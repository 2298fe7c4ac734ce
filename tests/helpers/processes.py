"""A whole deployment as real processes: start, kill -9, freeze, start again on the same folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from feddisco.admin import AdminClient
from feddisco.console import find_newest
from feddisco.demo import Process, Processes
from shared.config import RunConfig
from shared.schemas import LedgerRow, RoundView, RunRequest, RunStatus
from tests.helpers.fork_server import start_forked

__all__ = ["HELD", "Deployment", "Settings", "deployment", "run_config"]

PATIENCE_SECONDS = 150.0  # against a hang, not a measure: machines may be busy
POLL_SECONDS = 0.01, 0.2  # at first, and when it takes long: each question costs the coordinator time


@dataclass
class ForkedProcesses(Processes):
    """Processes that spare themselves what is the same at every start."""

    def start(self, name: str, *arguments: str) -> Process:
        environment = os.environ | self.environment
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = start_forked(arguments, environment, log)
        return self.running[name]


Settings = Mapping[str, object]
"""What becomes FEDDISCO_* variables."""

HELD: Settings = {"hold_aggregation_seconds": 600}
"""A coordinator whose aggregations do not come to their end."""


def run_config(name: str, **changes: Any) -> RunConfig:
    """Three clients with label skew; a fraction of a second of training a round."""
    given: dict[str, Any] = {
        "name": name,
        "task": "digits",
        "rounds": 3,
        "weighting": {"kind": "disco"},
        "partition": "niid1:3:0.3",
        "local": {"steps": 15, "batch_size": 16, "learning_rate": 0.05},
        "evaluate_every": 0,
        "round_deadline_seconds": 600,
    }
    return RunConfig.model_validate(given | changes)


@dataclass
class Deployment:
    """Coordinators and workers by name, all of which end with the context that made this."""

    processes: Processes
    urls: dict[str, str] = field(default_factory=dict)
    _admins: dict[str, AdminClient] = field(default_factory=dict)
    _commands: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.processes.folder

    @property
    def data_folder(self) -> Path:
        return self.folder / "coordinator"

    @property
    def admin(self) -> AdminClient:
        """The admin's calls, to the first coordinator."""
        return next(iter(self._admins.values()))

    # ------------------------------------------------------------ coordinators

    def start_coordinator(
        self,
        name: str = "coordinator",
        *,
        verify: Any = True,
        wait: bool = True,
        settings: Settings | None = None,
    ) -> str:
        """Start it, or start it again on the same port; ``settings`` become FEDDISCO_* variables."""
        port = self.urls[name].rpartition(":")[2] if name in self.urls else "0"
        told = len(self.log(name))
        with self._environment(settings or {}):
            self.processes.start(name, "server", "--port", port)
        started = self.wait_for(
            lambda: re.search(r"coordinator on (https?://\S+)", self.log(name)[told:]), f"{name} listens"
        )
        url: str = started[1]
        if name not in self.urls:
            self.urls[name] = url
            token = self.processes.environment["FEDDISCO_ADMIN_TOKEN"]
            self._admins[name] = AdminClient(url, token=token, verify=verify)
        if wait:
            self.wait_for(lambda: _ready(url, verify), f"{name} is ready")
        return url

    # ------------------------------------------------------------ workers

    def start_worker(self, name: str, *more: str, at: str = "coordinator") -> None:
        """A worker that takes part ``--partition run``; ``more`` are further flags."""
        state = str(self.folder / name)
        self._commands[name] = ("worker", "--url", self.urls[at], "--name", name, "--state", state, *more)
        self.start_again(name)

    def start_workers(self, count: int, *at: str) -> list[str]:
        """``site-0`` ... with the index of their number, dealt to the coordinators in turn."""
        names = [f"site-{index}" for index in range(count)]
        for index, name in enumerate(names):
            part = ("--partition", "run", "--index", str(index), "--algorithms", "tests.helpers.*:*")
            self.start_worker(name, *part, at=at[index % len(at)] if at else "coordinator")
        return names

    def start_again(self, name: str) -> None:
        """A worker, on its old state folder."""
        self.processes.start(name, *self._commands[name])

    # ------------------------------------------------------------ any process

    def kill(self, name: str) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        process = self.processes.running[name]
        process.kill()
        process.wait()

    def end(self, name: str) -> int:
        """SIGTERM; returns the exit code."""
        process = self.processes.running[name]
        process.terminate()
        return process.wait(30)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end if the process still lives."""
        process = self.processes.running[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if self.processes.running[name] is process:
                process.send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def console(self, *arguments: str, code: int = 0, settings: Settings | None = None) -> str:
        """``feddisco ARGUMENTS`` as an operator's process; returns what it wrote, stderr included."""
        with (
            self._environment({"data_folder": self.data_folder, **(settings or {})}),
            tempfile.TemporaryFile() as output,
        ):
            process = start_forked(arguments, os.environ | self.processes.environment, output)
            ended = process.wait(PATIENCE_SECONDS)
            output.seek(0)
            said = output.read().decode()
        assert ended == code, f"feddisco {' '.join(arguments)}: {ended}\n{said}"
        return said

    # ------------------------------------------------------------ runs

    def create(self, config: RunConfig) -> None:
        try:
            self.admin.create(RunRequest(config=config))
        except httpx.ReadTimeout:  # on a busy machine PyTorch may take longer to come than the console waits
            self.wait_for(lambda: any(run.run == config.name for run in self.admin.runs()), "it is created")

    def rounds(self, run: str) -> list[RoundView]:
        return self.admin.rounds(run)

    def open_round(self, run: str) -> RoundView | None:
        return self.admin.run(run).current_round

    def row(self, run: str, client: str) -> LedgerRow | None:
        """The client's row in the round that is open now."""
        current = self.open_round(run)
        return next((row for row in current.ledger if row.client == client), None) if current else None

    def status(self, run: str) -> RunStatus:
        return self.admin.run(run).status

    def digest(self, run: str) -> str:
        """The last round's model to score, when the run has completed."""
        self.wait_for(lambda: self.status(run).is_terminal, f"run {run} ends")
        view = self.admin.run(run)
        last = find_newest(self.rounds(run))
        assert view.status is RunStatus.COMPLETED, f"{view.status}: {view.reason}\n{self.logs()}"
        assert last is not None
        assert (last.round, len(view.enrolments)) == (view.rounds, view.config.min_clients)
        return str(last.scored_model)

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """The condition's first true value; a coordinator that is down does not count as false."""
        end = time.monotonic() + seconds
        pause, longest = POLL_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                if found := condition():
                    return found
            time.sleep(pause)
            pause = min(pause * 1.3, longest)
        raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.logs()}")

    def logs(self) -> str:
        """The end of every process's log, for a failure's message."""
        return "\n".join(f"--- {name}\n{self.processes.tail(name)}" for name in self.processes.running)

    @contextmanager
    def _environment(self, settings: Settings) -> Iterator[None]:
        before = dict(self.processes.environment)
        self.processes.environment.update({f"FEDDISCO_{k.upper()}": str(v) for k, v in settings.items()})
        try:
            yield
        finally:
            self.processes.environment.clear()
            self.processes.environment.update(before)


def _ready(url: str, verify: Any) -> bool:
    return httpx.get(f"{url}/readyz", timeout=5.0, verify=verify).is_success


@contextmanager
def deployment(folder: Path, database_url: str | None = None) -> Iterator[Deployment]:
    """An empty one, with tokens; all its processes are ended at the end, whatever happened."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        "FEDDISCO_DATA_FOLDER": str(folder / "coordinator"),
        "FEDDISCO_ADMIN_TOKEN": secrets.token_urlsafe(24),
        "FEDDISCO_JOIN_TOKEN": secrets.token_urlsafe(24),
        "FEDDISCO_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if database_url is not None:
        environment["FEDDISCO_DATABASE_URL"] = database_url
    made = Deployment(ForkedProcesses(folder, environment))
    try:
        yield made
    finally:
        made.processes.stop()
        for admin in made._admins.values():
            admin.close()
