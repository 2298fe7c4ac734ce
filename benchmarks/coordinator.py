"""The coordinator alone: what a round costs it, and how long its end takes.

    python -m benchmarks.coordinator                  ten clients, 62,006 parameters
    python -m benchmarks.coordinator --large          11.2 M parameters, 45 MB an update
    python -m benchmarks.coordinator --tree DIR       the coordinator of another checkout, to compare with

A real coordinator in a process of its own; its clients are connections of this process, which send the model
that they were given with one number changed. So nothing but the coordinator is measured, and no worker has
to import PyTorch first. ``end_seconds`` is the time from the answer to the round's last update until the
first client is given the next round. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import Deployment, deployment
from benchmarks.overhead import TASK
from benchmarks.polling import register
from feddisco.admin import make_run_request
from server.database.migrations import upgrade
from shared.config import RunConfig
from shared.wire.digests import format_content_digest

RUN = "bench"
WARM_UP = 2
"""Rounds before those that are measured: PyTorch is imported in the first."""


@dataclass
class Marks:
    """When, by round: its last update was answered, and its first client was given it."""

    uploaded: dict[int, float] = field(default_factory=dict)
    given: dict[int, float] = field(default_factory=dict)
    cpu_seconds: dict[int, float] = field(default_factory=dict)

    def note_given(self, round: int, process: psutil.Process) -> None:
        if round not in self.given:
            self.given[round] = time.monotonic()
            times = process.cpu_times()
            self.cpu_seconds[round] = times.user + times.system


class Client:
    """Takes part in every round over one connection."""

    def __init__(self, running: Deployment, token: str, index: int, marks: Marks) -> None:
        url = httpx.URL(running.url)
        self._address = url.host, url.port
        self._head = f"Host: {url.host}\r\nAuthorization: Bearer {token}\r\n"
        self._index = index
        self._marks = marks
        self._process = psutil.Process(running.processes.running["coordinator"].pid)

    async def run(self, classes: list[str], rounds: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        try:
            body = {"task": TASK, "examples": 100, "classes": classes}
            await self._call("POST", f"/runs/{RUN}/enrolments", json.dumps(body).encode(), "application/json")
            done = 0
            while done < rounds:
                asked = json.loads(await self._call("GET", "/work?wait=30"))
                if asked["kind"] == "train":
                    self._marks.note_given(asked["round"], self._process)
                    await self._train(asked)
                    done = asked["round"]
        finally:
            self._writer.close()

    async def _train(self, asked: dict[str, Any]) -> None:
        update = bytearray(await self._call("GET", f"/blobs/{asked['model']}"))
        update[-4:] = struct.pack("<f", 1e-3 * self._index)  # of the last tensor
        digest = hashlib.sha256(update).hexdigest()
        place = f"/runs/{RUN}/rounds/{asked['round']}/update?attempt={asked['attempt']}&steps=1&examples=100"
        await self._call("PUT", place, bytes(update), "application/vnd.safetensors", digest)
        self._marks.uploaded[asked["round"]] = time.monotonic()

    async def _call(
        self, method: str, path: str, body: bytes = b"", kind: str = "", digest: str | None = None
    ) -> bytes:
        head = f"{method} /api/v1{path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        if digest is not None:
            head += f"Content-Digest: {format_content_digest(digest)}\r\n"
        self._writer.write(f"{head}\r\n".encode())
        if body:
            self._writer.write(body)
        await self._writer.drain()
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().splitlines() if line.startswith(b"content-length:"))
        content = await self._reader.readexactly(int(length.partition(b":")[2]))
        if not answer.startswith(b"HTTP/1.1 20"):
            raise Failed(f"{method} {path} was answered {content[:500].decode(errors='replace')}")
        return content


def measure(
    folder: Path,
    *,
    large: bool,
    clients: int,
    rounds: int,
    tree: Path | None = None,
    database_url: str | None = None,
) -> dict[str, Any]:
    database = database_url or f"sqlite:///{folder}/bench.sqlite"
    upgrade(database)
    tokens = register(database, clients)
    marks = Marks()
    with deployment(folder, database, tree=tree) as running:
        config = _config(large, clients, rounds + WARM_UP)
        view = running.admin.create(make_run_request(running.admin, config))
        playing = [Client(running, token, index, marks) for index, token in enumerate(tokens)]
        asyncio.run(_play(playing, list(view.classes), rounds + WARM_UP))
        memory = psutil.Process(running.processes.running["coordinator"].pid).memory_info().rss
    return {
        "benchmark": "coordinator, large" if large else "coordinator",
        "clients": clients,
        "parameters": 11_220_132 if large else 62_006,
        "rounds": rounds,
        **_result(marks, rounds),
        "megabytes": round(memory / 1e6),
        **machine(),
    }


async def _play(playing: list[Client], classes: list[str], rounds: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for client in playing:
            tasks.create_task(client.run(classes, rounds))


def _result(marks: Marks, rounds: int) -> dict[str, Any]:
    """Of the rounds after the first ones; the last has no next one by which it could be measured."""
    numbers = sorted(marks.given)[WARM_UP:]
    first, last = numbers[0], numbers[-1]
    seconds = [marks.given[number + 1] - marks.given[number] for number in numbers[:-1]]
    ends = [marks.given[number + 1] - marks.uploaded[number] for number in numbers[:-1]]
    used = marks.cpu_seconds[last] - marks.cpu_seconds[first]
    return {
        "cpu_seconds_a_round": round(used / (last - first), 4),
        "seconds_a_round": round(statistics.median(seconds), 4),
        "end_seconds": round(statistics.median(ends), 4),
    }


def _config(large: bool, clients: int, rounds: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": RUN,
            "task": TASK,
            "task_options": {"size": "large" if large else "small"},
            "rounds": rounds,
            "min_clients": clients,
            "quorum": clients,
            "weighting": {"kind": "sizes"},
            "evaluate_every": 0,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="11.2 M parameters instead of 62,006")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="rounds that are measured; default: 30, or 4 with --large")
    parser.add_argument(
        "--database-url", help="empty database to use [default: SQLite in a temporary folder]"
    )
    parser.add_argument("--tree", type=Path, help="checkout whose coordinator is started [default: this one]")
    chosen = parse(parser, {"clients": 2, "rounds": 2})
    print_result(
        lambda folder: measure(
            folder,
            large=chosen.large,
            clients=chosen.clients,
            rounds=chosen.rounds or (4 if chosen.large else 30),
            tree=chosen.tree,
            database_url=chosen.database_url,
        )
    )


if __name__ == "__main__":
    main()
