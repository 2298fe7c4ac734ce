"""Records a round in a journal again and again, and is killed (-9) at each next touch of the file system.

The places are counted by Python's own audit events (open, rename, remove ...), so every gap between two
steps of the journal is met without a hook in its code. Each try is a fork, so PyTorch is imported once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from shared.schemas import Train, UpdateReport
from worker.journal import Journal

TOUCHES = {
    "open",
    "os.rename",
    "os.remove",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.chmod",
    "os.truncate",
}


def assignment(round: int, last_aggregated_round: int, attempt: int = 1) -> Train:
    return Train.model_validate(
        {
            "run": "demo",
            "round": round,
            "attempt": attempt,
            "index": 0,
            "model": "0" * 64,
            "relative_size": 1.0,
            "deadline_at": "2026-11-28T00:00:00Z",
            "last_aggregated_round": last_aggregated_round,
        }
    )


def record(journal: Journal, work: Train) -> None:
    """A round whose update and kept state hold the round's number."""
    run = journal.open_run("demo")
    values = torch.full((5,), float(work.round))
    kept = {"control": {"w": values}}
    report = UpdateReport(attempt=work.attempt, steps=1, examples=1, loss=0.1, seconds=0.1)
    run.record(work, run.find_kept(work), {"model": {"w": values}}, kept, report)


def die_at(touch: int, folder: Path) -> None:
    """Kill this process just before its ``touch``-th access inside ``folder``."""
    left = touch

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in TOUCHES and any(str(folder) in str(argument) for argument in arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def attempt(touch: int, folder: Path) -> bool:
    """Whether the second round was recorded to its end before the kill."""
    child = os.fork()
    if child == 0:
        die_at(touch, folder)
        record(Journal(folder, print), assignment(2, 1))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(parent: Path) -> None:
    """Leaves a folder ``NUMBER`` for each kill, and ``done`` for the first try that came to its end."""
    record(Journal(parent / "before", print), assignment(1, 0))
    for touch in range(1, 100):
        folder = parent / str(touch)
        shutil.copytree(parent / "before", folder)
        if attempt(touch, folder):
            folder.rename(parent / "done")
            return
    raise SystemExit("the journal touches the file system more than 100 times")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
