"""A federation of real processes over HTTP whose every upload is recorded."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx

from shared.problems import Problem
from shared.schemas import RunStatus
from tests.faults.history import Answer, History, Look, Result, Sent, read_result
from tests.helpers.databases import OwnPostgres
from tests.helpers.processes import Deployment, Settings, deployment
from tests.helpers.proxies import Exchange, proxy

__all__ = ["JUDGE", "SHIM", "TRAINERS", "Federation", "federation"]

TRAINERS: Final = 3
JUDGE: Final = "judge"
DISK: Final = "64m"
LONGEST_RUN_SECONDS: Final = 400.0
"""Against a hang: trials run for hours beside other things."""
SHIM = Path(__file__).with_name("clock_shim.c")
_UPDATE = re.compile(r"/api/v1/runs/([^/]+)/rounds/(\d+)/update")


class Recorder:
    """What the proxies saw of updates, by run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, str] = {}  # by token
        self._sent: dict[str, list[Sent]] = {}

    def note(self, exchange: Exchange) -> None:
        target = urlsplit(exchange.path)
        if exchange.method == "POST" and target.path == "/api/v1/clients":
            self._note_client(exchange)
        elif exchange.method == "PUT" and (found := _UPDATE.fullmatch(target.path)):
            attempt = int(parse_qs(target.query)["attempt"][0])
            self._note_update(exchange, found[1], int(found[2]), attempt)

    def _note_client(self, exchange: Exchange) -> None:
        if exchange.answer is not None and exchange.answer.status in (200, 201):
            credential = json.loads(exchange.answer.body)
            with self._lock:
                self._clients[f"Bearer {credential['token']}"] = credential["client"]

    def _note_update(self, exchange: Exchange, run: str, number: int, attempt: int) -> None:
        headers = {name.lower(): value for name, value in exchange.headers.items()}
        encoded = headers["content-digest"].removeprefix("sha-256=:").removesuffix(":")
        digest = base64.b64decode(encoded).hex()
        answer, reason = _judge(exchange)
        with self._lock:
            client = self._clients[headers["authorization"]]
            self._sent.setdefault(run, []).append(Sent(client, number, attempt, digest, answer, reason))

    def sent(self, run: str) -> list[Sent]:
        with self._lock:
            return list(self._sent.get(run, ()))

    def token_of(self, client: str) -> str:
        with self._lock:
            return next(token for token, name in self._clients.items() if name == client)


def _judge(exchange: Exchange) -> tuple[Answer, str]:
    """A fault of the service is no answer: the client sends again."""
    if exchange.answer is None or exchange.answer.status >= 500:
        return "lost", ""
    if exchange.answer.status == 200:
        return "acknowledged", ""
    return "refused", str(json.loads(exchange.answer.body).get("code", ""))


@dataclass
class Federation:
    """Coordinators ``first`` (and, on PostgreSQL, ``second``), three trainers and an evaluator."""

    system: Deployment
    recorder: Recorder
    has_small_disk: bool
    postgres: OwnPostgres | None = None
    clock: Path | None = None
    """The file by which the processes' clock is set; None: they go by the system's."""
    kept: dict[str, bytes] = field(default_factory=dict)
    """Models as they were before they were damaged: the operator's backup."""
    ended: list[str] = field(default_factory=list)

    @property
    def coordinators(self) -> list[str]:
        return [name for name in ("first", "second") if name in self.system.urls]

    @property
    def blobs(self) -> Path:
        return self.system.data_folder / "blobs"

    def settings(self) -> Settings:
        return {"min_free_bytes": 1, "lost_update_seconds": 600, "requests_per_minute": 1_000_000}

    def restart(self, name: str, after_seconds: float = 0.0) -> None:
        self.system.kill(name)
        time.sleep(after_seconds)
        self.system.start_coordinator(name, settings=self.settings())

    def is_over(self, run: str) -> bool:
        with contextlib.suppress(Problem):  # 503 while a fault lasts
            return self.system.status(run).is_terminal
        return False

    def wait_until_over(self, run: str) -> None:
        """The operator does what the page tells: put a lost model back, resume what is paused."""
        end = time.monotonic() + LONGEST_RUN_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError, Problem):
                self._look_after(run)
                if self.system.status(run).is_terminal:
                    return
            time.sleep(0.2)
        view = self.system.admin.run(run)
        raise AssertionError(f"{run} does not end: {view.status}, {view.waiting_for}\n{self.system.logs()}")

    def _look_after(self, run: str) -> None:
        view = self.system.admin.run(run)
        if view.status is RunStatus.PAUSED:
            self.system.admin.control(run, "resume")
        ready = httpx.get(f"{self.system.urls['first']}/readyz", timeout=30).json()
        if "damaged" in ready["checks"].get("files", ""):
            for digest, content in self.kept.items():
                path = self.system.folder / "restored"
                path.write_bytes(content)
                self.system.admin.put_blob(path, digest)

    def read(self, run: str) -> Result:
        admin = self.system.admin
        return read_result(admin.run(run), admin.rounds(run), admin.log(run))

    def look_around(self, run: str, history: History) -> None:
        """A trainer tries to fetch another one's update."""
        others = [sent for sent in history.sent if sent.client == "site-1" and sent.answer == "acknowledged"]
        for sent in others[:1]:
            token = {"Authorization": self.recorder.token_of("site-0")}
            url = f"{self.system.urls['first']}/api/v1/blobs/{sent.digest}"
            did = httpx.get(url, headers=token, timeout=30).status_code == 200
            history.looks.append(Look("site-0", f"update {sent.digest[:12]} of site-1", False, did))


# -------------------------------------------------------------------- starting it


@cache
def make_clock() -> tuple[Path, Path | None]:
    """The file that says by how much all clocks are set, and the library that makes processes believe it.

    One for all federations of this process: what is forked for them has it from its parent. No library where
    there is no C compiler, or none that makes one that Linux loads.
    """
    # not pytest's folder, which is closed to PostgreSQL's own user
    folder = Path(tempfile.mkdtemp(prefix="fdclock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    clock, made = folder / "clock", folder / "clock_shim.so"
    clock.write_bytes(struct.pack("q", 0))
    compiler = shutil.which("cc")
    if compiler is None:
        return clock, None
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl"]
    return clock, made if subprocess.run(command, capture_output=True).returncode == 0 else None


@contextmanager
def under_our_clock() -> Iterator[dict[str, str]]:
    """What a process's environment has to say; meanwhile this one's does, for what forks from it."""
    clock, shim = make_clock()
    environment = {} if shim is None else {"LD_PRELOAD": str(shim), "FAULTS_CLOCK": str(clock)}
    os.environ.update(environment)
    try:
        yield environment
    finally:
        for name in environment:
            del os.environ[name]


def goes_by_our_clock(pid: int) -> bool:
    return SHIM.stem in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own, that can be filled; False where this user may not mount one."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def federation(
    folder: Path, make_postgres: Callable[[dict[str, str]], OwnPostgres] | None = None
) -> Iterator[Federation]:
    """All processes are up when it is given; ``make_postgres`` starts a server with this environment."""
    with ExitStack() as stack:
        environment = stack.enter_context(under_our_clock())
        has_small_disk = stack.enter_context(small_disk(folder / "coordinator"))
        postgres = None if make_postgres is None else make_postgres(environment)
        system = stack.enter_context(deployment(folder, None if postgres is None else postgres.fresh()))
        recorder = Recorder()
        made = Federation(system, recorder, has_small_disk, postgres)
        names = ("first",) if postgres is None else ("first", "second")
        for name in names:
            system.start_coordinator(name, settings=made.settings())
        if goes_by_our_clock(system.processes.running["first"].pid):
            made.clock = make_clock()[0]
        for name in names:
            through = stack.enter_context(proxy(system.urls[name], listener=recorder.note))
            system.urls[f"to {name}"] = through
        for index in range(TRAINERS):
            at = f"to {names[index % len(names)]}"
            part = ("--partition", "run", "--index", str(index))
            system.start_worker(f"site-{index}", *part, at=at)
        system.start_worker(JUDGE, "--partition", "run", "--role", "evaluator", at="to first")
        yield made
