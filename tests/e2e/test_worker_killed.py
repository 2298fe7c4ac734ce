"""A worker process that is stopped and killed in the middle of training changes nothing in the result."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from server.database.migrations import upgrade
from tests.helpers.live_coordinator import JOIN, Live, live
from tests.helpers.worker_crew import create, worker

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
SLOW = "tests.helpers.own_tasks:Slow"
RUN: dict[str, Any] = {
    "task": SLOW,
    "task_options": {"seconds_a_step": 0.02},
    "algorithm": "scaffold",  # keeps a control variate, which must survive too
    "rounds": 2,
    "local": {"steps": 100, "batch_size": 16, "learning_rate": 0.02, "momentum": 0.0},
    "partition": "iid:2",
}


@contextmanager
def _coordinator(folder: Path) -> Iterator[Live]:
    url = f"sqlite:///{folder / 'coordinator.db'}"
    upgrade(url)
    with live(url, folder / "coordinator") as at:
        yield at


@contextmanager
def _process(at: Live, state: Path, index: int) -> Iterator[subprocess.Popen[str]]:
    """``feddisco worker`` as a process; its log is read when it has ended."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "feddisco", "worker", "--url", at.url, "--name", state.name),
            *("--state", str(state), "--task", SLOW, "--partition", "run", "--index", str(index)),
            *("--device", "cpu", "--threads", "1", "--exit-when-finished"),
        ],
        cwd=ROOT,
        env={**os.environ, "FEDDISCO_JOIN_TOKEN": JOIN, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _row(at: Live, client: str) -> dict[str, Any]:
    """The client's row in the ledger of the current round."""
    current = at.run()["current_round"] or {"ledger": [], "round": 0}
    rows = [row for row in current["ledger"] if row["client"] == client]
    return {"round": current["round"], **(rows[0] if rows else {"progress": None})}


def _in_the_middle_of(at: Live, client: str, round: int) -> dict[str, Any]:
    """Wait until a heartbeat says that the client is training this round."""

    def training() -> dict[str, Any] | None:
        row = _row(at, client)
        found: dict[str, Any] | None = row["progress"] if row["round"] == round else None
        return found

    progress: dict[str, Any] = at.wait_for(training, seconds=60)
    return progress


def _final_model(at: Live) -> str:
    at.wait_for(lambda: at.run()["status"] == "completed", seconds=60)
    return str(at.run()["model"])


def _undisturbed(folder: Path) -> str:
    folder.mkdir()
    with _coordinator(folder) as at:
        create(at, **(RUN | {"task_options": {"seconds_a_step": 0.0}}))
        options = {"task": SLOW, "partition": "run"}
        crew = [worker(at, folder, f"site-{index}", index=index, **options) for index in range(2)]
        assert [member.join() for member in crew] == [0, 0]
        return _final_model(at)


@pytest.mark.slow
def test_stopped_and_killed_in_training_the_final_model_is_the_same(tmp_path: Path) -> None:
    expected = _undisturbed(tmp_path / "undisturbed")
    state = tmp_path / "site-1"
    with _coordinator(tmp_path) as at:
        create(at, **RUN)
        other = worker(at, tmp_path, "site-0", task=SLOW, partition="run", index=0)
        with _process(at, state, 1) as process:
            _in_the_middle_of(at, "site-1", 1)
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=20)[1]
            assert process.returncode == 0, log
            assert "Stopped as asked" in log
            told = _row(at, "site-1")
            assert told["status"] == "training"  # the round stays its own
            assert 0 < told["progress"]["step"] < 100  # it left after a batch, not after the round
        with _process(at, state, 1) as process:
            _in_the_middle_of(at, "site-1", 2)
            process.kill()
            process.wait()
        with _process(at, state, 1) as process:
            log = process.communicate(timeout=90)[1]
            assert process.returncode == 0, log
        assert other.join() == 0
        assert _final_model(at) == expected
        attempts = {(row["round"], row["attempt"]) for row in at.admin.get("/runs/demo/rounds").json()}
        assert attempts == {(1, 1), (2, 1)}  # no round was lost by it
    assert stat.S_IMODE((state / "credential.json").stat().st_mode) == 0o600
