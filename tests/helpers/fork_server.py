"""``feddisco`` processes that start by a fork of one that has imported everything already.

Importing PyTorch costs each process seconds of CPU time, and the tests start hundreds of them. These
processes run the same ``main`` with their own arguments, environment, folder, session and log; they are
killed, frozen and waited for like any other. What an interpreter does before ``main`` is left to the tests of
the command.

The server is a process of its own, because a fork of the tests' process would copy its threads' locks. It
forks at each request, is the parent of all, and tells how each ended through a pipe.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TypedDict, cast

__all__ = ["ForkedProcess", "start_forked"]

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""What PyTorch reads when it is imported: all that start here have the same."""

IMPORTED = (
    "torch",
    "uvicorn",
    "feddisco.main",
    "server.main",
    "server.app",
    "worker.main",
    "worker.loop",
    "shared.tasks",
    "shared.training",
)
LONGEST_REQUEST = 1 << 20


class Request(TypedDict):
    """What the server is asked for."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str


@dataclass
class ForkedProcess:
    """What ``subprocess.Popen`` offers, of a process whose parent is the server."""

    args: Sequence[str]
    pid: int
    _ending: IO[bytes] = field(repr=False)
    returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal."""
        if self.returncode is None:
            ready, _, _ = select.select([self._ending], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            # not to the end: a child that was stopped right after its fork still holds the pipe
            told = os.read(self._ending.fileno(), 64)
            self._ending.close()
            self.returncode = int(told) if told else -signal.SIGKILL  # the server itself is gone
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_forked(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> ForkedProcess:
    """Start ``feddisco ARGUMENTS`` with nothing but this environment, in this process's folder."""
    server = _server()
    request = Request(arguments=list(arguments), environment=dict(environment), folder=os.getcwd())
    reading, writing = os.pipe()
    try:
        descriptors = array.array("i", [output.fileno(), writing])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        server.sendmsg([json.dumps(request).encode()], rights)
    finally:
        os.close(writing)
    pid = int(server.recv(64))
    return ForkedProcess(("feddisco", *arguments), pid, os.fdopen(reading, "rb"))


@cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends when the connection does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.fork_server", str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    assert ours.recv(64) == b"ready"
    return ours


# ---------------------------------------------------------------- the server's process


def serve(connection: socket.socket) -> bool:
    """Fork at each request until the connection is closed.

    Returns whether this is a child, which is to run ``main`` now.
    """
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # the collector of a child would copy every page that it looks at
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    endings: dict[int, int] = {}
    connection.send(b"ready")
    while True:
        ready, _, _ = select.select([connection.fileno(), waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            _tell_endings(endings)
        if connection.fileno() in ready:
            content, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
            if not content:
                break
            output, ending = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for inherited in (waking, woken, ending, *endings.values()):
                    os.close(inherited)
                connection.close()
                _prepare(json.loads(content), output)
                return True
            os.close(output)
            endings[pid] = ending
            connection.send(str(pid).encode())
    for pid in endings:
        os.kill(pid, signal.SIGKILL)
    return False


def _tell_endings(endings: dict[int, int]) -> None:
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ending = endings.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(ending, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ending)


def _prepare(request: Request, output: int) -> None:
    """What the system and the interpreter do for ``python -m feddisco ARGUMENTS``."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    further = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [folder for folder in further if folder not in sys.path]
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(line_buffering=True, encoding="utf-8")
    sys.argv = ["feddisco", *request["arguments"]]


if __name__ == "__main__":
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        from feddisco.main import main

        main()
