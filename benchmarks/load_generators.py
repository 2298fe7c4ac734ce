"""What stands beside an honest run in ``benchmarks.load``: each load is a process of its own, with an end.

``polls`` and ``uploads`` come from clients with tokens; ``streams`` and ``viewers`` are open pages; ``loris``
are connections that send a byte of a header now and then; ``flood`` is JSON without a token; ``browsers``
are pages in Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx

from benchmarks.browsers import open_pages
from benchmarks.command import Failed
from benchmarks.viewers import RUN, Viewer
from shared.wire.digests import format_content_digest

__all__ = ["CROWD", "LOADS", "Load", "Report", "under_load"]

ROOT: Final = Path(__file__).resolve().parent.parent
CROWD: Final = "crowd"
"""The run of the clients that upload."""
FLOOD_BYTES: Final = 770_000
FLOOD_PAUSE_SECONDS: Final = 0.05
DRIP_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 400
OPENED_AT_A_TIME: Final = 100

JSON: Final = {"Content-Type": "application/json"}
Counts = Counter[str]


@dataclass(frozen=True)
class Load:
    """``many`` of one kind; ``tokens`` of the clients that it plays; ``after``: the newest event."""

    kind: str
    many: int
    url: str
    tokens: Sequence[str] = ()
    after: int = 0


@dataclass
class Report:
    """What a load has done: how often which status was answered, ``closed`` and ``failed`` connections."""

    counts: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0


@contextmanager
def under_load(loads: Sequence[Load]) -> Iterator[list[Report]]:
    """The reports are complete after the block. Raises Failed: a load has not come up."""
    started: list[tuple[Load, subprocess.Popen[str]]] = []
    reports: list[Report] = []
    try:
        for load in loads:
            command = [sys.executable, "-m", "benchmarks.load_generators"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
            )
            started.append((load, process))
            _tell(process, json.dumps(asdict(load)))
        for load, process in started:
            if _hear(process) != "ready":
                raise Failed(f"The load of {load.many} {load.kind} did not come up.")
        yield reports
        for _, process in started:
            _tell(process, "end")
        for load, process in started:
            if not (told := _hear(process)):
                raise Failed(f"The load of {load.many} {load.kind} ended early.")
            reports.append(Report(**json.loads(told)))
    finally:
        for _, process in started:
            process.kill()
            process.communicate()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    """The next line; empty if the process has ended, as it does in any case after some minutes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -------------------------------------------------------------------- in the load's process


def main() -> None:
    """A load from stdin; ``ready`` on stdout when it is up; a report at stdin's next line, or its end."""
    signal.alarm(LONGEST_SECONDS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load = Load(**json.loads(sys.stdin.readline()))
    report = asyncio.run(_browse(load) if load.kind == "browsers" else _play(load))
    print(json.dumps(asdict(report)), flush=True)


def _report(counts: Counts, others: float = 0.0) -> Report:
    """``others``: CPU seconds of the processes that this one has started."""
    used = os.times()
    return Report(dict(counts), round(used.user + used.system + others, 2))


async def _wait_for_the_end() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def _browse(load: Load) -> Report:
    counts: Counts = Counter()
    async with open_pages(f"{load.url}/runs/{RUN}", load.many, counts) as cpu_seconds:
        opening = cpu_seconds()
        await _wait_for_the_end()
        return _report(counts, cpu_seconds() - opening)


async def _play(load: Load) -> Report:
    counts: Counts = Counter()
    ready = asyncio.Semaphore(0)
    opening = asyncio.Semaphore(OPENED_AT_A_TIME)
    work = LOADS[load.kind]
    tasks = [
        asyncio.create_task(_keep(work, load, number, counts, ready, opening)) for number in range(load.many)
    ]
    for _ in tasks:
        await ready.acquire()
    await _wait_for_the_end()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return _report(counts)


@dataclass
class Line:
    """One connection of a load."""

    load: Load
    number: int
    counts: Counts
    up: Callable[[], None]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def signed(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.load.tokens[self.number]}"}

    async def ask(
        self, request: str, headers: Mapping[str, str] = MappingProxyType({}), body: bytes = b""
    ) -> tuple[int, bytes]:
        """Status and body of the answer, which is counted."""
        lines = [f"{request} HTTP/1.1", f"Host: {httpx.URL(self.load.url).host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        content = await self.reader.readexactly(int(length[1])) if length else b""
        status = int(head[9:12])
        self.counts[str(status)] += 1
        return status, content


async def _keep(
    work: Callable[[Line], Awaitable[None]],
    load: Load,
    number: int,
    counts: Counts,
    ready: asyncio.Semaphore,
    opening: asyncio.Semaphore,
) -> None:
    """One connection after the other, as whoever is cut off tries again."""
    address = httpx.URL(load.url)
    told = False

    def up() -> None:
        nonlocal told
        if not told:
            told = True
            ready.release()

    while True:
        try:
            async with opening:
                reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            counts["failed"] += 1
            await asyncio.sleep(1)
            continue
        try:
            await work(Line(load, number, counts, up, reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            counts["closed"] += 1
            up()
            await asyncio.sleep(0.2)
        finally:
            writer.close()


async def _poll(line: Line) -> None:
    line.up()
    while True:
        await line.ask("GET /api/v1/work?wait=30", line.signed)


async def _upload(line: Line) -> None:
    """All are woken at once when their round opens; each sends the model back."""
    place = f"/api/v1/runs/{CROWD}"
    enrolment = json.dumps({"task": "digits", "examples": 100, "classes": list("0123456789")}).encode()
    await line.ask(f"POST {place}/enrolments", line.signed | JSON, enrolment)
    line.up()
    while True:
        status, body = await line.ask("GET /api/v1/work?wait=10", line.signed)
        asked = json.loads(body) if status == 200 else {"kind": "none"}
        if asked["kind"] != "train":
            continue
        _, model = await line.ask(f"GET /api/v1/blobs/{asked['model']}", line.signed)
        digest = format_content_digest(hashlib.sha256(model).hexdigest())
        headers = {"Content-Type": "application/vnd.safetensors", "Content-Digest": digest}
        report = f"attempt={asked['attempt']}&steps=1&examples=100"
        await line.ask(f"PUT {place}/rounds/{asked['round']}/update?{report}", line.signed | headers, model)


async def _follow(line: Line, *, pages: bool = False) -> None:
    """An open page's stream, on a connection of its own."""
    line.writer.close()
    viewer = Viewer(httpx.URL(line.load.url), line.load.after, pages=pages)
    opened = asyncio.Semaphore(0)
    running = asyncio.create_task(viewer.run(opened))
    waiting = asyncio.create_task(opened.acquire())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        line.up()
        await running
    except* Failed:
        line.counts["refused"] += 1
    except* (OSError, asyncio.IncompleteReadError):
        line.counts["closed"] += 1
    finally:
        running.cancel()
        waiting.cancel()
        line.counts["pages"] += viewer.fetched


async def _view(line: Line) -> None:
    await _follow(line, pages=True)


async def _drip(line: Line) -> None:
    line.up()
    for piece in b"GET /healthz HTTP/1.1\r\nHost: slow\r\nX-Slow: " + b"s" * 10_000:
        line.writer.write(bytes([piece]))
        await line.writer.drain()
        with contextlib.suppress(TimeoutError):
            if not await asyncio.wait_for(line.reader.read(1024), DRIP_SECONDS):
                raise ConnectionResetError


async def _flood(line: Line) -> None:
    body = b'{"name": "' + b"x" * FLOOD_BYTES + b'"}'
    line.up()
    while True:
        await line.ask("POST /api/v1/clients", JSON, body)
        await asyncio.sleep(FLOOD_PAUSE_SECONDS)


LOADS: Final[dict[str, Callable[[Line], Awaitable[None]]]] = {
    "polls": _poll,
    "uploads": _upload,
    "streams": _follow,
    "viewers": _view,
    "loris": _drip,
    "flood": _flood,
}


if __name__ == "__main__":
    main()
