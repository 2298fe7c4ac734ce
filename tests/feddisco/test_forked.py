"""A forked ``feddisco`` process is one of its own: session, log, environment, signals, exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from shared.versions import VERSION
from tests.architecture.sources import ROOT
from tests.helpers.http_servers import closed_port

PROGRAM = """
import json, multiprocessing, os, subprocess, sys, time
import worker.main, worker.loop
from pathlib import Path
from feddisco.demo import raise_on_signals
from feddisco.forked import ForkedProcess

folder, port = Path(sys.argv[1]), sys.argv[2]

def start(name, *arguments, **environment):
    return ForkedProcess(arguments, os.environ | environment, folder / f"{name}.log")

def begin(name):
    process = start(name, "worker", "--name", name, FEDDISCO_STATE=str(folder / name),
                    FEDDISCO_URL=f"http://127.0.0.1:{port}", FEDDISCO_JOIN_TOKEN="token")
    while "Nothing listens" not in (folder / f"{name}.log").read_text():
        time.sleep(0.01)
    return process

print("not flushed yet")
try:
    with raise_on_signals():
        ended = [start("version", "version").wait(60), start("wrong", "run", "bogus").wait(60)]
        asked, killed = begin("asked"), begin("killed")
        sessions = {os.getsid(asked.pid), os.getsid(killed.pid), os.getsid(0)}
        was_running = asked.poll() is None
        try:
            asked.wait(0.01)
        except subprocess.TimeoutExpired:
            ended.append("late")
        asked.terminate()
        killed.kill()
        ended += [asked.wait(60), killed.wait(60)]
        asked.terminate()  # as for any process that has ended
finally:
    for process in multiprocessing.active_children():
        process.kill()
print(json.dumps([ended, was_running, len(sessions), "FEDDISCO_URL" in os.environ]))
"""


def test_forks_end_log_and_are_signalled_like_any_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(closed_port())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, last = done.stdout.splitlines()
    assert first == "not flushed yet"
    assert json.loads(last) == [[0, 2, "late", 0, -9], True, 3, False]
    assert done.stderr == ""
    logs = {path.stem: path.read_text() for path in tmp_path.glob("*.log")}
    assert VERSION in logs["version"]
    assert "No such command 'bogus'" in logs["wrong"]
    assert "Stopped as asked" in logs["asked"]
    assert "Stopped as asked" not in logs["killed"]
    assert "Traceback" not in "".join(logs.values())
    assert "not flushed yet" not in "".join(logs.values())
