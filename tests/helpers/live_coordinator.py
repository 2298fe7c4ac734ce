"""A real coordinator over real HTTP in this process, and hand-made clients without any training."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from safetensors.numpy import save

from server.app import create_app, make_coordinator, prepare
from server.clock import Clock
from server.coordinator import Coordinator
from server.main import Server, options
from server.settings import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
ADMIN = "admin-token-of-the-tests"
JOIN = "join-token-of-the-tests"
CLASSES = ("cat", "dog", "owl")
TASK = "tests.nowhere:Task"  # never imported: its weights are uploaded
SHAPES: dict[str, tuple[int, ...]] = {"layer.weight": (4, 3), "layer.bias": (4,), "scale": ()}
MANIFEST = [{"name": name, "shape": list(shape), "dtype": "F32"} for name, shape in SHAPES.items()]


def tensors(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.full(shape, value, dtype=np.float32) for name, shape in SHAPES.items()}


def file_of(value: float) -> bytes:
    """An update or a model in which every number is ``value``."""
    return save(tensors(value))


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def content_digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def upload_headers(body: bytes, **more: str) -> dict[str, str]:
    return {"Content-Type": "application/vnd.safetensors", "Content-Digest": content_digest(body), **more}


@dataclass
class ManualClient:
    """One client, by hand."""

    http: httpx.Client
    name: str
    examples: int = 10

    def enrol(self, run: str, examples: int, **more: Any) -> httpx.Response:
        self.examples = examples
        body = {"task": TASK, "examples": examples, "classes": CLASSES, **more}
        return self.http.post(f"/runs/{run}/enrolments", json=body)

    def submit(self, run: str, value: float | str, metric: str = "kl") -> httpx.Response:
        return self.http.put(f"/runs/{run}/discrepancy", json={"metric": metric, "value": value})

    def work(self, wait: float = 0.0) -> dict[str, Any] | None:
        answer = self.http.get("/work", params={"wait": wait}, timeout=wait + 10)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return None if found["kind"] == "wait" else found

    def until(self, kind: str, seconds: float = 20.0) -> dict[str, Any]:
        """Poll until an assignment of this kind comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.work(wait=1.0)
            if found is not None and found["kind"] == kind:
                return found
        raise AssertionError(f"{self.name} got no assignment to {kind} in {seconds} s")

    def upload(self, run: str, round: int, body: bytes, **report: Any) -> httpx.Response:
        headers = report.pop("headers", None) or upload_headers(body)
        numbers = {"attempt": 1, "steps": 3, "examples": self.examples, **report}
        return self.http.put(
            f"/runs/{run}/rounds/{round}/update", params=numbers, content=body, headers=headers
        )


@dataclass
class Live:
    """A coordinator that answers at ``url``; ``admin`` is a client with the admin's token."""

    url: str
    coordinator: Coordinator
    admin: httpx.Client
    _open: list[httpx.Client] = field(default_factory=list)

    def http(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        made = httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=30)
        self._open.append(made)
        return made

    def site(self, name: str) -> ManualClient:
        """A newly registered client."""
        answer = self.http(JOIN).post("/clients", json={"name": name, "version": "test"})
        assert answer.status_code == 201, answer.text
        return ManualClient(self.http(answer.json()["token"]), name)

    def create(self, name: str = "demo", value: float = 0.0, **config: Any) -> dict[str, Any]:
        """A run of three tensors that all begin with ``value``."""
        body = file_of(value)
        put = self.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
        assert put.status_code == 204, put.text
        request = {
            "config": {"name": name, "task": TASK, "classes": CLASSES, "rounds": 2, **config},
            "initial": {"digest": sha256(body), "manifest": MANIFEST},
        }
        answer = self.admin.post("/runs", json=request)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def run(self, name: str = "demo") -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get(f"/runs/{name}").json()
        return found

    def events(self, run: str | None = "demo") -> list[dict[str, Any]]:
        return [event.model_dump(mode="json") for event in self.coordinator.store.events(0, run, 10_000)]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.02)
        raise AssertionError("it did not come to pass in time")


def settings_for(database_url: str, folder: Path, **more: Any) -> Settings:
    return Settings(
        data_folder=folder,
        database_url=database_url,
        port=0,
        **{"admin_token": ADMIN, "join_token": JOIN, **more},
    )


class _PromptServer(Server):
    """Without uvicorn's pauses of 0.1 s at its end, of which thousands of tests would wait for two each."""

    async def main_loop(self) -> None:
        self._asked, self._loop = asyncio.Event(), asyncio.get_running_loop()
        ticking = asyncio.create_task(super().main_loop())
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait([ticking, asked], return_when=asyncio.FIRST_COMPLETED)

    def end(self) -> None:
        """From another thread."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._asked.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # once it has answered
        if await self._is_idle():
            await self.lifespan.shutdown()
        else:
            await super().shutdown(sockets)

    async def _is_idle(self) -> bool:
        for _ in range(20):
            if not self.server_state.connections and not self.server_state.tasks:
                return True
            await asyncio.sleep(0.001)
        return False


@contextmanager
def live(database_url: str, folder: Path, clock: Clock | None = None, **settings: Any) -> Iterator[Live]:
    """Start a coordinator on a free port, as ``server.main`` does, and end it as SIGTERM does."""
    given = settings_for(database_url, folder, **settings)
    coordinator = make_coordinator(given, clock)
    prepare(coordinator)
    config = uvicorn.Config(create_app(coordinator), port=0, **options(coordinator))
    server = _PromptServer(config, coordinator.hub)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the coordinator did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    opened = Live(url, coordinator, httpx.Client(base_url=f"{url}/api/v1", timeout=60))
    opened.admin.headers["Authorization"] = f"Bearer {ADMIN}"
    try:
        yield opened
    finally:
        server.end()
        thread.join(timeout=30)
        for client in (opened.admin, *opened._open):
            client.close()
        assert not thread.is_alive(), "the coordinator did not end"


def process(folder: Path, database_url: str, **settings: Any) -> subprocess.Popen[str]:
    """``serve`` in a process of its own, whose stderr is read by the caller."""
    given = {
        "data_folder": str(folder),
        "database_url": database_url,
        "port": 0,
        "admin_token": ADMIN,
        **settings,
    }
    program = (
        "import json, sys; from server.main import serve; from server.settings import Settings; "
        "sys.exit(serve(Settings(**json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", program, json.dumps({**given, **settings})]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def enrolled(
    at: Live, sizes: Sequence[int], discrepancies: Sequence[float] | None = None
) -> list[ManualClient]:
    """Clients ``site-0``, ``site-1`` ... in the run "demo", ready to train."""
    sites = [at.site(f"site-{index}") for index in range(len(sizes))]
    for index, (site, size) in enumerate(zip(sites, sizes, strict=True)):
        assert site.enrol("demo", size, index=index).status_code == 200
        if discrepancies is not None:
            assert site.submit("demo", discrepancies[index]).status_code == 204
    return sites
