"""The real application on a real socket, in a thread of the test's process."""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from pydantic import SecretStr

from server.app import create_app, make_coordinator, prepare
from server.coordinator import Coordinator
from server.settings import Settings
from tests.helpers.clocks import clock_by

ADMIN_TOKEN = "admin-token-of-a-browser-test"
STARTED_WITHIN_SECONDS = 30


@dataclass(frozen=True)
class Served:
    base: str
    coordinator: Coordinator

    def leave(self, run: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        httpx.delete(
            f"{self.base}/api/v1/runs/{run}/enrolments/me", headers=headers, timeout=30
        ).raise_for_status()

    def post(self, path: str, body: object, token: str = ADMIN_TOKEN) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{self.base}/api/v1{path}", json=body, headers=headers, timeout=30)
        answer.raise_for_status()
        return answer


def prepare_coordinator(folder: Path, migrated: Path, clock: Callable[[], dt.datetime]) -> Coordinator:
    """A coordinator on a fresh SQLite database in ``folder``; an existing one is kept."""
    folder.mkdir(exist_ok=True)
    database = folder / "feddisco.db"
    if not database.exists():
        shutil.copyfile(migrated, database)
    return make_coordinator(Settings(data_folder=folder, admin_token=SecretStr(ADMIN_TOKEN)), clock_by(clock))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serve(coordinator: Coordinator, port: int | None = None) -> Iterator[Served]:
    """Runs until the block ends."""
    port = port or free_port()
    prepare(coordinator)
    options = uvicorn.Config(
        create_app(coordinator), port=port, log_level="error", ws="none", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(options)
    thread = threading.Thread(target=server.run, name=f"uvicorn-{port}")
    thread.start()
    try:
        limit = time.monotonic() + STARTED_WITHIN_SECONDS
        while not server.started:
            assert thread.is_alive(), "the server has ended at its start"
            assert time.monotonic() < limit, "the server does not start"
            time.sleep(0.02)
        yield Served(f"http://127.0.0.1:{port}", coordinator)
    finally:
        server.should_exit = True
        thread.join()
