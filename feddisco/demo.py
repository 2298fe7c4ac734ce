"""``feddisco demo``: a coordinator, an evaluator and six workers as separate processes on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

import httpx

from feddisco.admin import AdminClient, load_config, make_run_request
from feddisco.console import find_newest, follow, print_accuracy, print_ledger, print_steps, print_sums, say
from feddisco.record import write_record
from feddisco.settings import PREFIX
from shared.config import RunConfig
from shared.interruptions import repeat_ignored
from shared.problems import InvalidConfiguration
from shared.schemas import RunStatus
from shared.texts import format_count

__all__ = ["Process", "Processes", "raise_on_signals", "run_demo"]

HOST = "127.0.0.1"
DATA = f"{PREFIX}DATA"
CAN_FORK = sys.platform == "linux"
"""Elsewhere libraries of the system that PyTorch loads do not bear a fork."""


class Process(Protocol):
    """What :class:`subprocess.Popen` and forks have in common."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass
class Processes:
    """Child processes with a log file each; all of them end with this object.

    Their variables are ``environment`` over what is ``inherited``.
    """

    folder: Path
    environment: dict[str, str]
    running: dict[str, Process] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def start(self, name: str, *arguments: str) -> Process:
        """Start ``feddisco ARGUMENTS``; its output goes to ``NAME.log`` in the folder."""
        return self.start_module(name, "feddisco", *arguments)

    def start_module(self, name: str, module: str, *arguments: str) -> Process:
        """The same with ``python -m MODULE``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.inherited, **self.environment},
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends them in order
            )
        self.running[name] = process
        return process

    def fork(self, name: str, *arguments: str) -> None:
        """The same as :meth:`start`, by a fork of this process (:mod:`feddisco.forked`)."""
        from feddisco.forked import ForkedProcess

        environment = {**self.inherited, **self.environment}
        self.running[name] = ForkedProcess(arguments, environment, self.folder / f"{name}.log")

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def failed(self) -> str | None:
        """The name of a process that ended with an error, if any."""
        return next((name for name, process in self.running.items() if process.poll() not in (None, 0)), None)

    def stop(self, seconds: float = 10.0) -> None:
        """SIGTERM to all, SIGKILL to those that do not leave in time."""
        for process in reversed(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        end = time.monotonic() + seconds
        try:
            for process in self.running.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        finally:  # also when somebody asks twice
            for process in self.running.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()


def run_demo(
    source: str = "demo",
    *,
    port: int,
    rounds: int | None = None,
    data: Path | None = None,
    database_url: str | None = None,
    keep: Path | None = None,
    save: Path | None = None,
    secure: bool = False,
) -> int:
    """Train, print, and on a terminal go on serving the page until Ctrl-C. Returns the exit code.

    ``source`` is ``demo`` or a configuration file with a partition; ``data`` is where its data lie;
    ``save`` takes the whole run as JSON; with ``secure`` the coordinator learns sums alone.
    """
    config = _read_config(source, rounds, secure=secure)
    if config.partition is None:
        raise InvalidConfiguration(
            f"{source}: partition is missing, so the workers would not know how to split the data.",
            hint="Add a line like `partition: niid2:5+1`.",
        )
    port = _choose_port(port)
    with ExitStack() as stack:
        stack.enter_context(raise_on_signals())
        folder = _make_folder(stack, keep)
        environment = _make_environment(folder, database_url)
        processes = Processes(folder, environment, inherited=_find_inherited())
        stack.callback(processes.stop)
        try:
            with raise_on_signals():  # here, too: what it makes of a library's fault is said like any other
                return _train(processes, config, f"http://{HOST}:{port}", port, data, save)
        except KeyboardInterrupt:
            say("\nStopped.")
            return 130


def _read_config(source: str, rounds: int | None, *, secure: bool) -> RunConfig:
    changes = {} if rounds is None else {"rounds": rounds}
    config = load_config(source, **changes)
    if secure and config.secure is None:
        return load_config(source, **changes, secure={})
    return config


def _train(
    processes: Processes, config: RunConfig, url: str, port: int, data: Path | None, save: Path | None
) -> int:
    began = time.monotonic()
    say("Starting a coordinator, an evaluator and the workers, each in its own process ...")
    processes.start("coordinator", "server", "--host", HOST, "--port", str(port))
    if CAN_FORK:
        from feddisco.forked import import_worker

        import_worker()  # while the coordinator starts
    with AdminClient(url, token=processes.environment["FEDDISCO_ADMIN_TOKEN"]) as client:
        _wait_until_ready(processes, url)
        _start_workers(processes, config, url, data)
        client.create(make_run_request(client, config))
        say(f"Status page: {url}/runs/{config.name}", "bold")
        status = follow(client, config.name, lambda line: _report(processes, line))
        if status is not RunStatus.COMPLETED:
            say(f"The run is {status.value}: {client.run(config.name).reason}")
            return 1
        _print_summary(client, processes, config, time.monotonic() - began)
        if save is not None:
            write_record(client, config.name, save)
    _keep_serving(url)
    return 0


def _start_workers(processes: Processes, config: RunConfig, url: str, data: Path | None) -> None:
    flags = ["--url", url, "--task", config.task, "--algorithms", config.algorithm.name]
    flags += [] if data is None else ["--data", str(data)]
    own: dict[str, tuple[str, ...]] = {
        f"client-{index + 1}": ("--partition", "run", "--index", str(index))
        for index in range(config.min_clients)
    }
    start = processes.fork if CAN_FORK else processes.start
    for name, more in (own | {"evaluator": ("--role", "evaluator")}).items():
        start(name, "worker", "--name", name, "--state", str(processes.folder / name), *flags, *more)


def _report(processes: Processes, line: str) -> None:
    say(line)
    if name := processes.failed():
        raise InvalidConfiguration(
            f"The process {name} ended early. The end of its log:\n{processes.tail(name)}"
        )


def _print_summary(client: AdminClient, processes: Processes, config: RunConfig, seconds: float) -> None:
    last = find_newest(client.rounds(config.name))
    if last is None:
        return
    if config.secure is None:
        print_ledger(last.ledger, f"Ledger of round {last.round}: p_k = max(n_k - a d_k + b, 0) / sum")
    else:
        print_steps(client.whole_log(config.name))
        print_sums(client.run(config.name).totals, last)
        _print_own_weights(processes, config.min_clients)
    for evaluation in last.evaluations:
        images = format_count(evaluation.examples, "image")
        print_accuracy(evaluation, f"Test accuracy of round {last.round} on {images}")
    say(f"Final model sha256 {last.scored_model}")
    say(f"{format_count(last.round, 'round')} in {seconds:.1f} s, including the start of all processes.")


def _print_own_weights(processes: Processes, workers: int) -> None:
    """What each worker wrote to its own log, and to nobody else."""
    say("What each worker knows alone, from its own log:", "bold")
    for index in range(workers):
        name = f"client-{index + 1}"
        text = (processes.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        own = [line for line in text.splitlines() if "own weight" in line]
        say(f"{name}  {own[-1] if own else 'no weight yet'}")


def _keep_serving(url: str) -> None:
    if not sys.stdout.isatty():
        return
    say(f"The page stays at {url} until Ctrl-C.", "bold")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    say("\nStopped.")


# ---------------------------------------------------------------- surroundings


def _make_environment(folder: Path, database_url: str | None) -> dict[str, str]:
    """Settings of the children. Tokens go through the environment: ``ps`` shows arguments."""
    environment = {
        "FEDDISCO_DATA_FOLDER": str(folder / "coordinator"),
        "FEDDISCO_ADMIN_TOKEN": secrets.token_urlsafe(24),
        "FEDDISCO_JOIN_TOKEN": secrets.token_urlsafe(24),
        "TMPDIR": str(folder),  # what libraries leave there (PyTorch: torchinductor_USER) goes with it
        "FEDDISCO_THREADS": "1",
        "FEDDISCO_TELL": "full",  # the data are everybody's
        "OMP_NUM_THREADS": "1",  # one core a process: eight processes would fight over them otherwise
        "PYTHONUNBUFFERED": "1",
    }
    if database_url is not None:
        environment["FEDDISCO_DATABASE_URL"] = database_url
    return environment


def _find_inherited() -> dict[str, str]:
    """The shell's variables without its FEDDISCO_*, which are of a federation of its own.

    With its database the demo would write there, and with its join code or role no worker would come. Where
    data sets lie is the same. No proxy leads to this machine.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(PREFIX) or name.upper() == DATA
    }
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, (kept.get(name), HOST, "localhost")))
    return kept


def _choose_port(port: int) -> int:
    """The port itself if it can be listened on; for 0 a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
            raise InvalidConfiguration(
                f"Port {port} on {HOST} cannot be used: {why}.",
                hint="Use another: make demo PORT=8001, or feddisco demo --port 0 for any free one.",
            ) from None
        return int(probe.getsockname()[1])


def _make_folder(stack: ExitStack, keep: Path | None) -> Path:
    """The folder for everything the demo writes; a temporary one unless it is to be kept."""
    try:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            return keep
        folder = Path(tempfile.mkdtemp(prefix="feddisco-demo-"))
    except OSError as error:
        raise InvalidConfiguration(
            f"The demo cannot write its files: {error}.",
            hint="Set TMPDIR to a folder that can be written, or give --keep FOLDER.",
        ) from None
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, also where a shell had SIGINT ignored.

    So they do where a library takes the interruption for a fault of its own: pydantic, while it builds.
    """
    has_come = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        with repeat_ignored(KeyboardInterrupt, interrupt):
            yield
    except Exception:
        if has_come:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(processes: Processes, url: str, seconds: float = 45.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if processes.running["coordinator"].poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).is_success:
                return
        time.sleep(0.05)
    raise InvalidConfiguration(
        f"The coordinator did not come up. The end of its log:\n{processes.tail('coordinator')}"
    )
