"""A newcomer's trial: the commands of the README, nothing else, from an empty folder to the first round."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image

from tests.helpers.http_servers import closed_port

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("outside")]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLASSES = ("benign", "malignant", "unclear")
SHORT: dict[str, Any] = {
    "model": "simple-cnn",
    "rounds": 2,
    "task_options": {"size": 32},
    "local": {"epochs": 1, "batch_size": 8, "learning_rate": 0.01},
    "min_clients": 2,
}
"""What makes the README's run small."""


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def commands(block: str) -> list[str]:
    """Without comments and blank lines."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


COORDINATOR, SITE = (
    commands(block) for block in re.findall(r"```console\n(.*?)```", section("Your own run"), re.DOTALL)[:2]
)
(RUN,) = re.findall(r"```yaml\n(.*?)```", section("Your own run"), re.DOTALL)


@dataclass
class Machine:
    """A folder with a shell in it; its processes end with the test."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def _arguments(self, command: str) -> dict[str, Any]:
        self.folder.mkdir(exist_ok=True)
        program = command.replace(".venv/bin/feddisco", f"{sys.executable} -m feddisco")
        program = re.sub(r"^feddisco ", f"{sys.executable} -m feddisco ", program)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        return {
            "args": ["sh", "-c", f"exec {program}"],
            "cwd": self.folder,
            "env": environment | self.environment,
        }

    def start(self, command: str, log: str) -> None:
        arguments = self._arguments(command)
        with (self.folder / log).open("ab") as file:
            self.started.append(
                subprocess.Popen(**arguments, stdout=file, stderr=file, start_new_session=True)
            )

    def run(self, command: str) -> tuple[str, str]:
        done = subprocess.run(**self._arguments(command), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def log(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made: dict[str, Machine] = {}
    yield lambda name: made.setdefault(name, Machine(tmp_path / name))
    for each in made.values():
        each.stop()


def wait_for(condition: Callable[[], Any], what: str, *machines: Machine, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    logs = "\n".join(path.read_text() for each in machines for path in each.folder.glob("*.log"))
    raise AssertionError(f"not within {seconds:.0f} s: {what}\n{logs}")


def draw_images(folder: Path, seed: int) -> None:
    """A dozen pictures a class, each class in a colour of its own."""
    random = np.random.default_rng(seed)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index in range(12):
            pixels = random.integers(0, 120, (32, 32, 3), dtype=np.uint8)
            pixels[:, :, number] += 120
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


@pytest.mark.slow
def test_a_new_site_in_five_commands(machine: Callable[[str], Machine], tmp_path: Path) -> None:
    assert (len(COORDINATOR), len(SITE)) == (3, 2), "as the README says"
    assert "three commands" in section("Your own run")
    url = f"https://127.0.0.1:{closed_port()}"
    coordinator, north, south = machine("coordinator"), machine("north"), machine("south")
    coordinator.folder.mkdir()
    (coordinator.folder / "run.yaml").write_text(yaml.safe_dump(yaml.safe_load(RUN) | SHORT))
    for number, site in enumerate((north, south)):
        draw_images(site.folder / "images", number)

    # the port is this test's own, and nothing here listens beyond this machine
    serve, create, invite = COORDINATOR
    serve = re.sub(r"--host \S+ --public-url \S+", f"--host 127.0.0.1 --port {url.rpartition(':')[2]}", serve)
    coordinator.environment["FEDDISCO_URL"] = url
    coordinator.start(serve, "coordinator.log")
    log = wait_for(
        lambda: "fingerprint" in (text := coordinator.log("coordinator.log")) and text,
        "it says its key",
    )
    (fingerprint,) = re.findall(r"fingerprint \(SHA-256\) is ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})", log)
    assert "Run skin-1 is enrolling" in coordinator.run(create)[0]
    code, advice = coordinator.run(invite)
    assert code.startswith("fdj1.")
    exported, worker = (line.strip() for line in advice.splitlines() if line.startswith("    "))
    assert exported == f"export FEDDISCO_JOIN={code.strip()}"
    assert worker == "feddisco worker --task imagefolder --data FOLDER"

    began = time.monotonic()
    given = SITE[1].replace("/data/images", "images")
    assert re.sub(r" --name \S+", "", given).endswith(
        worker.removeprefix("feddisco ").replace("FOLDER", "images")
    )
    for name, site in (("north", north), ("south", south)):
        site.environment["FEDDISCO_JOIN"] = code.strip()
        site.start(re.sub(r"--name \S+", f"--name {name}", given), "worker.log")

    token = (coordinator.folder / "feddisco-data" / "admin-token").read_text().strip()
    http = httpx.Client(base_url=url, verify=False, headers={"Authorization": f"Bearer {token}"})

    def run() -> dict[str, Any]:
        found: dict[str, Any] = http.get("/api/v1/runs/skin-1").json()
        return found

    wait_for(lambda: run()["completed_rounds"] >= 1, "the first round", coordinator, north, south)
    seconds = time.monotonic() - began
    wait_for(lambda: run()["status"] == "completed", "the run ends", coordinator, north, south)
    assert {row["client"]: row["examples"] for row in run()["enrolments"]} == {"north": 36, "south": 36}
    print(f"from the join code to the end of the first round: {seconds:.1f} s")

    # restarted without the code: address and certificate are in the state folder
    north.stop()
    del north.environment["FEDDISCO_JOIN"]
    (north.folder / "worker.log").unlink()
    north.start(given.replace(" --name hospital-a", ""), "worker.log")
    wait_for(lambda: f"Client north at {url}" in north.log("worker.log"), "it comes back", north)

    # somebody else at this address: refused, and both fingerprints are said
    coordinator.stop()
    shutil.move(coordinator.folder / "feddisco-data" / "self-signed.pem", coordinator.folder / "before.pem")
    coordinator.start(serve, "second.log")
    log = wait_for(lambda: "coordinator on" in (text := coordinator.log("second.log")) and text, "it listens")
    (other,) = re.findall(r"fingerprint \(SHA-256\) is (\S+)", log)
    said = wait_for(lambda: other in (text := north.log("worker.log")) and text, "the worker says so", north)
    assert f"The certificate of {url} is not the expected one" in said
    assert fingerprint in said
    assert "Traceback" not in said

    # a new join code for the new certificate
    north.stop()
    north.environment["FEDDISCO_JOIN"] = coordinator.run(invite)[0].strip()
    (north.folder / "worker.log").unlink()
    north.start(given.replace(" --name hospital-a", ""), "worker.log")
    wait_for(
        lambda: "Nothing to do" in north.log("worker.log") or "no run" in north.log("worker.log"),
        "it works",
        north,
    )
    http.close()
