"""A command as a process whose descendants can be found, whatever became of their parents."""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil

__all__ = ["MarkedProcess", "running_module"]

MARK = "PROCESS_OF_A_TEST"


class MarkedProcess:
    """``python -m ARGUMENTS``, and a mark in the environment by which its descendants are known."""

    def __init__(self, *arguments: str, environment: Mapping[str, str]) -> None:
        self.mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=os.environ | {MARK: self.mark, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """Wait until the output matches."""
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.output)):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert chunk, f"{pattern} did not come: {self.output}"
            self.output += chunk.decode()
        return found

    def wait_for_descendants(
        self, enough: Callable[[list[list[str]]], bool], seconds: float = 120.0
    ) -> list[psutil.Process]:
        """The living descendants, as soon as their command lines are ``enough``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [process for process in self.alive() if process.pid != self._process.pid]
            if enough([_command_line(process) for process in found]):
                return found
            assert self._process.poll() is None, (self.wait(), self.output)
            time.sleep(0.05)
        raise AssertionError(f"its processes did not start: {self.output}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 200.0) -> int:
        """Its exit code; ``output`` is complete then."""
        try:
            self.output += self._process.communicate(timeout=seconds)[0].decode()
        except subprocess.TimeoutExpired as late:
            alive = [_command_line(process) for process in self.alive()]
            raise AssertionError(f"it did not end: {self.output}{late.output}, {alive}") from late
        return self._process.returncode

    def alive(self) -> list[psutil.Process]:
        """All processes that carry the mark."""
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def forks(self) -> list[psutil.Process]:
        """Its children that have run no other program since."""
        own = psutil.Process(self._process.pid)
        return [child for child in own.children() if child.cmdline() == own.cmdline()]

    def end(self) -> None:
        for process in self.alive():
            process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
    except psutil.Error:
        return {}
    return found


def _command_line(process: psutil.Process) -> list[str]:
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


@contextmanager
def running_module(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[MarkedProcess]:
    """``python -m ARGUMENTS`` with this environment added; nothing of it is left after the block."""
    made = MarkedProcess(*arguments, environment=environment or {})
    try:
        yield made
    finally:
        made.end()
