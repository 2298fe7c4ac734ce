"""Real workers in threads of this process, for tests with a real coordinator."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from feddisco.admin import AdminClient, make_run_request
from shared.config import RunConfig
from tests.helpers.live_coordinator import ADMIN, JOIN, Live, ManualClient
from worker.main import run
from worker.settings import WorkerSettings
from worker.state import StoredCredential, write_credential

__all__ = ["ALONE", "Member", "create", "keep", "settings", "worker"]

ALONE = Path(__file__).with_name("alone.yaml")
"""A policy for runs with one trainer."""


def settings(at: Live, folder: Path, name: str, **more: Any) -> WorkerSettings:
    """Settings that leave when the run has ended; ``folder/name`` is the state folder."""
    given: dict[str, Any] = {
        "url": at.url,
        "join_token": JOIN,
        "name": name,
        "state": folder / name,
        "wait_seconds": 2.0,
        "threads": 1,
        "device": "cpu",
        "exit_when_finished": True,
        "policy": ALONE,
    }
    return WorkerSettings(**(given | more))


@dataclass
class Member:
    """A worker in a thread. ``exit_code`` and ``log`` are complete after :meth:`join`."""

    settings: WorkerSettings
    transport: httpx.BaseTransport | None = None
    exit_code: int | None = None
    _stream: io.StringIO = field(default_factory=io.StringIO)
    _thread: threading.Thread | None = None

    def start(self) -> Member:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        self.exit_code = run(self.settings, stream=self._stream, transport=self.transport)

    def join(self, seconds: float = 60.0) -> int:
        assert self._thread is not None
        self._thread.join(seconds)
        assert self.exit_code is not None, f"the worker did not end in {seconds} s:\n{self.log}"
        return self.exit_code

    @property
    def log(self) -> str:
        return self._stream.getvalue()


@contextmanager
def _admin(at: Live) -> Iterator[AdminClient]:
    with AdminClient(at.url, token=ADMIN) as admin:
        yield admin


def create(at: Live, **config: Any) -> RunConfig:
    """A run named demo, of two rounds with two clients, unless told otherwise; as the console creates it."""
    given = {"name": "demo", "task": "digits", "rounds": 2, "min_clients": 2, "local": {"steps": 3}}
    wanted = RunConfig.model_validate(given | config)
    with _admin(at) as admin:
        admin.create(make_run_request(admin, wanted))
    return wanted


def worker(at: Live, folder: Path, name: str, **more: Any) -> Member:
    """A started worker."""
    transport = more.pop("transport", None)
    return Member(settings(at, folder, name, **more), transport).start()


def keep(at: Live, folder: Path, site: ManualClient) -> None:
    """A state folder as a worker that was this client has left it."""
    token = site.http.headers["Authorization"].removeprefix("Bearer ")
    (folder / site.name).mkdir()
    write_credential(folder / site.name, StoredCredential(url=at.url, client=site.name, token=token))
