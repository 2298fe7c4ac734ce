"""``feddisco`` processes that are forks of this one, which has imported PyTorch for all of them.

Importing it costs a process one and a half seconds of CPU time, and a demo starts seven that need it. A fork
runs the same ``main`` with its own arguments, environment, session and log, and nothing as its input; it is
waited for and killed like any process.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import cast

__all__ = ["ForkedProcess", "import_worker"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEEDED = (
    *("worker.main", "worker.loop", "worker.journal", "worker.site", "worker.round_work"),
    *("worker.secure_work", "worker.private_rounds", "worker.privacy_account"),
    *("shared.tasks.loading", "shared.training.workbench", "shared.data.images", "numpy.random"),
)
"""What a worker imports until it has trained; what is missing here is imported by each fork for itself."""


def import_worker() -> None:
    """Import what a worker needs, on one thread: a fork would have no other, but the locks that it held."""
    os.environ["OMP_NUM_THREADS"] = "1"  # NumPy makes its threads when it is imported
    gc.disable()
    try:
        for name in NEEDED:
            importlib.import_module(name)
    finally:
        gc.enable()
    gc.freeze()  # the collector of a fork would copy every page that it looks at


class ForkedProcess(ForkProcess):
    """``feddisco ARGUMENTS``, started when it is made, with what :class:`subprocess.Popen` offers.

    ``environment`` has all of its variables, as there.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(name=" ".join(("feddisco", *arguments)))
        self._arguments, self._environment, self._log = arguments, environment, log
        log.touch()  # it can be read from now on
        with _signals_held():
            self.start()

    def run(self) -> None:
        """In the fork: what the system and the interpreter do for ``python -m feddisco ARGUMENTS``."""
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        _redirect(self._log)
        os.environ.clear()
        os.environ.update(self._environment)
        tempfile.tempdir = None  # looked up before, in another environment
        sys.argv = ["feddisco", *self._arguments]
        runpy.run_module("feddisco", run_name="__main__", alter_sys=True)

    @property
    def pid(self) -> int:
        if self.ident is None:
            raise ValueError("a process has no id before it is started")
        return self.ident

    def poll(self) -> int | None:
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal. Raises subprocess.TimeoutExpired."""
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
        return self.exitcode


def _redirect(log: Path) -> None:
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(written, stream.fileno())
        cast("TextIOWrapper", stream).reconfigure(write_through=True)
    os.close(written)


@contextmanager
def _signals_held() -> Iterator[None]:
    """A fork must not answer one by the handlers of this process, which end all that it has started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
