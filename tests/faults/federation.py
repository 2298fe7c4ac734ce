"""A federation of real processes over HTTP whose every upload is recorded, and the faults it can meet."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
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
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx

from shared.config import RunConfig
from shared.problems import Problem
from shared.schemas import RunStatus
from tests.faults.history import Answer, History, Look, Result, Sent, find_violations, read_result
from tests.helpers.databases import OwnPostgres
from tests.helpers.processes import PATIENCE_SECONDS, Deployment, Settings, deployment, run_config
from tests.helpers.proxies import Exchange, proxy

__all__ = ["Federation", "Trial", "federation", "list_faults", "play", "play_undisturbed"]

TRAINERS: Final = 3
JUDGE: Final = "judge"
DISK: Final = "64m"
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
    clock: Path | None
    """The file by which the processes' clock is set; None: there is no compiler."""
    has_small_disk: bool
    postgres: OwnPostgres | None = None
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
        end = time.monotonic() + PATIENCE_SECONDS
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


# -------------------------------------------------------------------- faults


Fault = Callable[[Federation, str, random.Random], str]
"""Happens to a run that is under way; returns what it was, in words."""


def kill_the_coordinator(fed: Federation, run: str, draws: random.Random) -> str:
    name, pause = draws.choice(fed.coordinators), draws.choice((0.0, 0.0, 2.0))
    fed.restart(name, pause)
    return f"{name}, back after {pause:g} s"


def kill_a_worker(fed: Federation, run: str, draws: random.Random) -> str:
    name = f"site-{draws.randrange(TRAINERS)}"
    fed.system.kill(name)
    fed.system.start_again(name)
    return name


def kill_the_evaluator(fed: Federation, run: str, draws: random.Random) -> str:
    fed.system.kill(JUDGE)
    fed.system.start_again(JUDGE)
    return JUDGE


def kill_the_database(fed: Federation, run: str, draws: random.Random) -> str:
    """A SQLite database dies with its coordinator."""
    pause = draws.choice((0.0, 1.0, 3.0))
    if fed.postgres is None:
        fed.restart("first", pause)
        return f"with its process, back after {pause:g} s"
    fed.postgres.kill()
    time.sleep(pause)
    fed.postgres.start()
    return f"back after {pause:g} s"


def fill_the_disk(fed: Federation, run: str, draws: random.Random) -> str:
    """All but so many bytes of it, so that another write is the first to fail each time."""
    left = draws.choice((0, 0, 4096, 20_000, 100_000, 300_000))
    ballast = fed.system.data_folder / "ballast"
    with ballast.open("wb") as file:
        free = shutil.disk_usage(fed.system.data_folder).free
        os.posix_fallocate(file.fileno(), 0, max(1, free - left))
    time.sleep(draws.uniform(0.5, 3.0))
    ballast.unlink()
    return f"{left} bytes left"


def flip_a_bit(fed: Federation, run: str, draws: random.Random) -> str:
    """In any stored file of the run."""
    view = fed.system.admin.run(run)
    named = {view.initial_model: "initial model", view.model: "model"}
    for made in fed.system.rounds(run):
        named |= {row.update: "update" for row in made.ledger if row.update}
    paths = {digest: fed.blobs / digest[:2] / digest for digest in sorted(named)}
    digest, path = draws.choice([found for found in paths.items() if found[1].is_file()])  # not collected yet
    whole = path.read_bytes()
    if named[digest] != "update":  # that comes again from its client
        fed.kept[digest] = whole
    place, bit = draws.randrange(len(whole)), draws.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([whole[place] ^ 1 << bit]))
    return f"{named[digest]} {digest[:12]}, byte {place} of {len(whole)}, bit {bit}"


def set_the_clock(fed: Federation, run: str, draws: random.Random) -> str:
    assert fed.clock is not None
    step = draws.choice((-86400, -700, -5, 5, 700, 86400))
    (before,) = struct.unpack("q", fed.clock.read_bytes())
    with fed.clock.open("r+b") as file:
        file.write(struct.pack("q", before + step * 10**9))
    return f"by {step} s"


def start_a_second_coordinator(fed: Federation, run: str, draws: random.Random) -> str:
    """On SQLite it is refused with a sentence; on PostgreSQL one is killed while the other goes on."""
    if fed.postgres is None:
        told = fed.system.console("server", "--port", "0", code=2, settings=fed.settings())
        assert "Traceback" not in told, told
        return "refused: " + told.strip().splitlines()[-1][:100]
    name = draws.choice(fed.coordinators)
    fed.system.kill(name)
    time.sleep(draws.uniform(1.0, 4.0))
    fed.system.start_coordinator(name, settings=fed.settings())
    return f"{name} was away, the other was there"


def delete_an_ended_run(fed: Federation, run: str, draws: random.Random) -> str:
    """Its files are collected while others are uploaded."""
    if not fed.ended:
        return "there was none yet"
    victim = fed.ended.pop(0)
    fed.system.admin.delete_run(victim, "collection during uploads")
    return victim


def delete_and_kill(fed: Federation, run: str, draws: random.Random) -> str:
    """kill -9 while a run is being deleted: it is there, or it is gone, and deleting it again works."""
    if not fed.ended:
        return "there was none yet"
    victim, pause = fed.ended.pop(0), draws.uniform(0.0, 0.05)

    def delete() -> None:
        with contextlib.suppress(httpx.TransportError, Problem):
            fed.system.admin.delete_run(victim, "drill")

    thread = threading.Thread(target=delete)
    thread.start()
    time.sleep(pause)
    fed.restart("first")
    thread.join()
    there = [each.run for each in fed.system.admin.all_runs()]
    if victim in there:
        assert fed.system.admin.run(victim).status.is_terminal
        fed.system.admin.delete_run(victim, "drill")
    assert victim in {deleted.run for deleted in fed.system.admin.deletions()}
    return f"{victim} after {1000 * pause:.0f} ms, {'was still there' if victim in there else 'was gone'}"


def erase_and_kill(fed: Federation, run: str, draws: random.Random) -> str:
    """kill -9 while a client is being erased that had come late and gone again."""
    name = f"guest-{draws.randrange(10**9)}"
    _come_late(fed, run, name)
    pause = draws.uniform(0.0, 0.05)

    def erase() -> None:
        with contextlib.suppress(httpx.TransportError, Problem):
            fed.system.admin.erase(name)

    thread = threading.Thread(target=erase)
    thread.start()
    time.sleep(pause)
    fed.restart("first")
    thread.join()
    names = {client.client for client in fed.system.admin.clients()}
    if name in names:
        fed.system.admin.erase(name)
    assert name not in {client.client for client in fed.system.admin.clients()}
    assert name not in json.dumps([event.model_dump(mode="json") for event in fed.system.admin.log(run)])
    return f"after {1000 * pause:.0f} ms, {'was still there' if name in names else 'was gone'}"


def come_late(fed: Federation, run: str, draws: random.Random) -> str:
    name = f"guest-{draws.randrange(10**9)}"
    _come_late(fed, run, name)
    return name


def _come_late(fed: Federation, run: str, name: str) -> None:
    """A trainer that enrols in the middle of the run and leaves again."""
    url = f"{fed.system.urls['first']}/api/v1"
    join = {"Authorization": f"Bearer {fed.system.processes.environment['FEDDISCO_JOIN_TOKEN']}"}
    with httpx.Client(base_url=url, timeout=30) as http:
        answer = http.post("/clients", json={"name": name, "version": "late"}, headers=join)
        http.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        view = fed.system.admin.run(run)
        enrolment = {"task": view.config.task, "examples": 50, "classes": view.classes}
        http.post(f"/runs/{run}/enrolments", json=enrolment)
        http.delete(f"/runs/{run}/enrolments/me")


def back_up(fed: Federation, run: str, draws: random.Random) -> str:
    """While updates arrive; what was taken is whole."""
    folder = fed.system.folder / "backup"
    fed.system.console("backup", "create", str(folder))
    told = fed.system.console("backup", "verify", str(folder))
    return told.strip().splitlines()[-1][:100]


FAULTS: Final[tuple[Fault, ...]] = (
    kill_the_coordinator,
    kill_a_worker,
    kill_the_evaluator,
    kill_the_database,
    fill_the_disk,
    flip_a_bit,
    set_the_clock,
    start_a_second_coordinator,
    delete_an_ended_run,
    delete_and_kill,
    erase_and_kill,
    come_late,
    back_up,
)


def list_faults(fed: Federation) -> list[Fault]:
    """Those that are possible here: the clock needs a C compiler, the small disk the right to mount."""
    missing: dict[Fault, bool] = {set_the_clock: fed.clock is None, fill_the_disk: not fed.has_small_disk}
    return [fault for fault in FAULTS if not missing.get(fault, False)]


# -------------------------------------------------------------------- one trial


@dataclass(frozen=True)
class Trial:
    """What came of one fault; a line of the results."""

    database: str
    seed: int
    fault: str
    detail: str
    seconds: float
    updates: int
    """Acknowledged."""
    lost_answers: int
    is_same_model: bool
    violations: tuple[str, ...]


def config(name: str) -> RunConfig:
    """Some seconds of work, so that a fault meets it in any of its states."""
    return run_config(name, rounds=3, evaluate_every=1, keep_updates=1)


def play_undisturbed(fed: Federation) -> Result:
    fed.system.create(config("undisturbed"))
    fed.wait_until_over("undisturbed")
    return fed.read("undisturbed")


def play(fed: Federation, fault: Fault, seed: int, undisturbed: Result) -> Trial:
    """A run, the fault at a time that has nothing to do with what the run is doing, and the checker."""
    draws = random.Random(f"fault {seed}")
    run = f"{fault.__name__.replace('_', '-')}-{seed}"
    began = time.monotonic()
    fed.system.create(config(run))
    if draws.random() < 0.8:
        fed.system.wait_for(lambda: fed.system.status(run) is not RunStatus.ENROLLING, "the run begins")
    time.sleep(draws.uniform(0.0, 1.5))
    detail = fault(fed, run, draws)
    fed.wait_until_over(run)
    history = History(sent=fed.recorder.sent(run), undisturbed=undisturbed)
    history.result = result = fed.read(run)
    fed.look_around(run, history)
    violations = tuple(map(str, find_violations(history)))
    if violations:
        history.write(fed.system.folder / f"{run}.json")
    fed.ended.append(run)
    last, wanted = result.attempts[-1], undisturbed.attempts[-1]
    return Trial(
        database="sqlite" if fed.postgres is None else "postgresql",
        seed=seed,
        fault=fault.__name__,
        detail=detail,
        seconds=round(time.monotonic() - began, 1),
        updates=sum(sent.answer == "acknowledged" for sent in history.sent),
        lost_answers=sum(sent.answer == "lost" for sent in history.sent),
        is_same_model=(last.round, last.status, last.model) == (wanted.round, "completed", wanted.model),
        violations=violations,
    )


# -------------------------------------------------------------------- starting it


def build_shim(folder: Path) -> Path | None:
    """None where there is no C compiler, or none that makes a library that Linux loads."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = folder / "clock_shim.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", made, SHIM, "-ldl"], capture_output=True
    )
    return made if done.returncode == 0 else None


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
        # not pytest's folder, which is closed to PostgreSQL's own user
        shim_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fdclock-")))
        shim_folder.chmod(0o755)
        shim, clock = build_shim(shim_folder), shim_folder / "clock"
        clock.write_bytes(struct.pack("q", 0))
        environment = {} if shim is None else {"LD_PRELOAD": str(shim), "FAULTS_CLOCK": str(clock)}
        has_small_disk = stack.enter_context(small_disk(folder / "coordinator"))
        postgres = None if make_postgres is None else make_postgres(environment)
        system = stack.enter_context(deployment(folder, None if postgres is None else postgres.fresh()))
        system.processes.environment.update(environment)
        recorder = Recorder()
        made = Federation(system, recorder, None if shim is None else clock, has_small_disk, postgres)
        names = ("first",) if postgres is None else ("first", "second")
        for name in names:
            system.start_coordinator(name, settings=made.settings())
        for name in names:
            through = stack.enter_context(proxy(system.urls[name], listener=recorder.note))
            system.urls[f"to {name}"] = through
        for index in range(TRAINERS):
            at = f"to {names[index % len(names)]}"
            part = ("--partition", "run", "--index", str(index))
            system.start_worker(f"site-{index}", *part, at=at)
        system.start_worker(JUDGE, "--partition", "run", "--role", "evaluator", at="to first")
        yield made
