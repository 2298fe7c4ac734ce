"""The compose file with real containers: `make test-compose` (needs a working `docker compose`)."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from feddisco.admin import load_config
from simulation.run import simulate

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Compose:
    """A project of its own name, port and secrets, beside whatever else runs here."""

    project: str
    env_file: Path
    port: int

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["docker", "compose", "-p", self.project, "--env-file", str(self.env_file), *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
        assert not check or result.returncode == 0, (
            f"{' '.join(arguments)}:\n{result.stdout}\n{result.stderr}"
        )
        return result

    def get(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10).raise_for_status().json()

    def run(self) -> dict[str, Any]:
        try:
            return dict(self.get("/api/v1/runs/demo"))
        except httpx.HTTPError:
            return {"status": "unreachable", "completed_rounds": 0}


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no Docker engine answers here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env_file = tmp_path_factory.mktemp("compose") / "env"
    lines = [
        f"{name}={secrets.token_hex(24)}"
        for name in ("POSTGRES_PASSWORD", "FEDDISCO_ADMIN_TOKEN", "FEDDISCO_JOIN_TOKEN")
    ]
    lines += [
        f"FEDDISCO_PORT={port}",
        "FEDDISCO_TAG=test",
        "COMPOSE_PROFILES=demo",
        f"TORCH_INDEX={os.environ.get('TORCH_INDEX', '')}",
    ]
    env_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    project = Compose(f"feddisco-test-{os.getpid()}", env_file, port)
    try:
        yield project
    finally:
        project("down", "--volumes", "--timeout", "5", check=False)


def until(condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.5)
    pytest.fail(f"after {seconds:.0f} s still not: {what}")


def test_the_demo_run_survives_stop_and_up_and_ends_in_the_same_model(
    compose: Compose, tmp_path: Path
) -> None:
    compose("up", "--build", "--detach")
    until(lambda: compose.run()["completed_rounds"] >= 2, "two rounds completed")
    compose("stop")
    assert compose.run()["status"] == "unreachable"
    compose("up", "--detach")
    until(lambda: compose.run()["status"] == "completed", "the run completed")
    run = compose.run()
    assert run["completed_rounds"] == 20
    torch.set_num_threads(1)  # as in the containers: sums within a matrix product depend on it
    expected = simulate(load_config("demo"), source=None, out=tmp_path / "demo.jsonl", say=lambda _: None)
    assert run["model"] == expected


def test_the_page_shows_the_run_on_loopback_only(compose: Compose) -> None:
    page = httpx.get(f"http://127.0.0.1:{compose.port}/runs/demo", timeout=10)
    assert page.status_code == 200
    assert "Accuracy by category" in page.text
    assert compose("port", "coordinator", "8000").stdout.strip() == f"127.0.0.1:{compose.port}"


@pytest.mark.parametrize("service", ["coordinator", "evaluator", "worker"])
def test_roles_run_without_root_on_a_read_only_file_system(compose: Compose, service: str) -> None:
    assert compose("exec", "-T", service, "id", "-u").stdout.strip() == "10001"
    refused = compose("exec", "-T", service, "touch", "/opt/feddisco/x", check=False)
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr


def test_no_secret_is_in_the_image_or_the_logs(compose: Compose) -> None:
    values = [line.split("=", 1)[1] for line in compose.env_file.read_text().splitlines()[:3]]
    history = subprocess.run(
        ["docker", "image", "inspect", "feddisco:test"], capture_output=True, text=True, check=True
    ).stdout
    logs = compose("logs").stdout
    assert not [value for value in values if value in history or value in logs]


def test_a_seventh_replica_says_that_the_data_are_dealt(compose: Compose) -> None:
    """On a fresh run: six take a part each, the seventh declines with a sentence."""
    compose("down", "--volumes", "--timeout", "5")
    compose("up", "--detach", "--scale", "worker=7")
    until(lambda: compose.run()["status"] == "completed", "the run with seven workers completed")
    enrolments = compose.run()["enrolments"]
    assert sorted(e["index"] for e in enrolments if e["index"] is not None) == [0, 1, 2, 3, 4, 5]
    declined = [e for e in enrolments if e["status"] == "declined"]
    assert [e["reason"] for e in declined if e["reason"]], enrolments


def test_containers_made_anew_take_over_the_state_of_the_old(compose: Compose) -> None:
    before = {e["client"] for e in compose.run()["enrolments"]}
    compose("up", "--detach", "--force-recreate", "--scale", "worker=7")
    until(lambda: compose.run()["status"] == "completed", "the coordinator is back")
    clients = compose("exec", "-T", "worker", "sh", "-c", "ls -d /var/lib/feddisco/slot-*").stdout.split()
    assert len(clients) == 7
    assert {e["client"] for e in compose.run()["enrolments"]} == before
