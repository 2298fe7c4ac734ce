"""A worker that waits, or declines, does without PyTorch: a real process, looked at from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.live_coordinator import JOIN, ROOT, Live

MAPS = Path("/proc/self/maps")
TORCH = "libtorch"


@contextmanager
def worker(at: Live, folder: Path, task: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "feddisco", "worker", "--url", at.url, "--join-token", JOIN]
    more = ["--name", "site", "--state", str(folder / "state"), "--task", task]
    process = subprocess.Popen([*command, *more], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def has_torch(process: int) -> bool:
    """Whether its library is mapped into the process of this id."""
    return TORCH in Path(f"/proc/{process}/maps").read_text()


def statuses(at: Live, run: str) -> list[str]:
    return [enrolment["status"] for enrolment in at.run(run)["enrolments"]]


@pytest.mark.skipif(not MAPS.exists(), reason="looks into /proc")
def test_a_worker_that_declines_and_waits_has_no_pytorch(at: Live, tmp_path: Path) -> None:
    with worker(at, tmp_path, "digits") as site:
        at.create("foreign")  # of another task: this site declines it
        at.wait_for(lambda: statuses(at, "foreign") == ["declined"], 60)
        assert not has_torch(site.pid)
    assert has_torch(os.getpid())  # the coordinator here has made a model's layout
