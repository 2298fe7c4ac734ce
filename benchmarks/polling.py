"""Waiting clients: the share of a core that they cost, and how soon a new run reaches them all.

A real coordinator in a process of its own on SQLite; the clients are raw connections in this process, so
that what is measured is the coordinator. How soon a run reaches them includes what the clients do in this
process to read their answers, all on one core (``client_cpu_seconds``). Prints one JSON line. Target: 1 ms of
CPU time a poll, what the idle coordinator costs included; the next assignment within 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import hashlib
import json
import resource
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import Deployment, deployment
from server.database.migrations import upgrade
from server.database.session import make_engine
from server.database.store import Store
from shared.config import RunConfig
from shared.schemas import RunRequest

TARGET_CPU, TARGET_SECONDS = 0.001, 2.0
"""Seconds a poll; seconds until the last client has its assignment."""
PATIENCE_SECONDS = 120.0
"""For the run's creation to reach everybody."""


def register(url: str, many: int) -> list[str]:
    """Tokens of ``many`` clients, written straight into the table: registration is not measured."""
    engine = make_engine(url)
    store, now = Store(engine), dt.datetime.now(dt.UTC)
    tokens = [f"token-of-client-{index:05d}" for index in range(many)]
    for index, token in enumerate(tokens):
        store.register(f"client-{index:05d}", hashlib.sha256(token.encode()).hexdigest(), "bench", now)
    engine.dispose()
    return tokens


class Poller:
    """One client that asks for work for ever, over one connection; notes when an assignment came."""

    def __init__(self, url: httpx.URL, token: str, wait_seconds: float) -> None:
        self._address = url.host, url.port
        lines = (
            f"GET /api/v1/work?wait={wait_seconds:g} HTTP/1.1",
            f"Host: {url.host}",
            f"Authorization: Bearer {token}",
        )
        self._request = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self.polls = 0
        self.assigned_at: float | None = None

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            while self.assigned_at is None:
                writer.write(self._request)
                answer = await read_answer(reader)
                self.polls += 1
                if answer["kind"] != "wait":
                    self.assigned_at = time.time()
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Any:
    """The JSON body of one HTTP answer on a connection that stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
    return json.loads(await reader.readexactly(int(length.partition(b":")[2])))


async def poll_until_assigned(
    running: Deployment, tokens: list[str], wait_seconds: float, seconds: float
) -> dict[str, Any]:
    """All clients poll; after ``seconds`` in which the coordinator is watched a run is created for them."""
    process = psutil.Process(running.processes.running["coordinator"].pid)
    pollers = [Poller(httpx.URL(running.url), token, wait_seconds) for token in tokens]
    tasks = []
    for poller in pollers:  # spread over the waiting time, as clients that live for long are
        tasks.append(asyncio.create_task(poller.run()))
        await asyncio.sleep(wait_seconds / len(pollers) / 2)
    asked = -sum(poller.polls for poller in pollers)
    before, began = process.cpu_times(), time.monotonic()
    await finish(tasks, seconds)
    after, ended = process.cpu_times(), time.monotonic()
    asked += sum(poller.polls for poller in pollers)
    used = after.user + after.system - before.user - before.system
    own = time.process_time()
    created = await asyncio.to_thread(create_run, running)
    if waiting := await finish(tasks, PATIENCE_SECONDS):
        raise Failed(f"{len(waiting)} clients got no assignment in {PATIENCE_SECONDS:g} s.")
    own = time.process_time() - own
    delays = sorted(poller.assigned_at - created for poller in pollers if poller.assigned_at is not None)
    return {
        "share_of_a_core": round(used / (ended - began), 4),
        "polls_per_second": round(asked / (ended - began), 1),
        "cpu_milliseconds_a_poll": round(1000 * used / max(asked, 1), 3),
        "median_seconds_to_assignment": round(delays[len(delays) // 2], 3),
        "last_seconds_to_assignment": round(delays[-1], 3),
        "client_cpu_seconds": round(own, 3),
        "megabytes": round(process.memory_info().rss / 1e6),
    }


async def finish(tasks: list[asyncio.Task[None]], seconds: float) -> set[asyncio.Task[None]]:
    """Wait until all are done, at most so long; returns those that are not.

    Raises:
        Failed: one has lost the coordinator.
    """
    done, waiting = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        if error := task.exception():
            raise Failed(f"A client has lost the coordinator: {error!r}") from error
    return waiting


def create_run(running: Deployment) -> float:
    """A run of a built-in task; when it was there, in seconds since the epoch (one machine, one clock)."""
    return running.admin.create(RunRequest(config=RunConfig(name="bench"))).created_at.timestamp()


def measure(
    folder: Path,
    *,
    clients: int,
    seconds: float,
    wait_seconds: float,
    settle_seconds: float,
    tree: Path | None = None,
    database_url: str | None = None,
) -> dict[str, Any]:
    _raise_file_limit()
    database = database_url or f"sqlite:///{folder}/bench.sqlite"
    upgrade(database)
    tokens = register(database, clients)
    with deployment(folder, database, tree=tree) as running:
        time.sleep(settle_seconds)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(poll_until_assigned(running, tokens, wait_seconds, seconds))
    soon = found["last_seconds_to_assignment"] <= TARGET_SECONDS
    within = soon and found["cpu_milliseconds_a_poll"] <= 1000 * TARGET_CPU
    return {"benchmark": "polling", "clients": clients, **machine(), **found, "within_target": within}


def _raise_file_limit() -> None:
    """A client is an open connection, here and in the coordinator, which does the same."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the coordinator is watched")
    parser.add_argument("--wait", type=float, default=30.0, help="how long one poll may wait, seconds")
    parser.add_argument(
        "--settle", type=float, default=10.0, help="seconds before the first poll: PyTorch is imported"
    )
    parser.add_argument(
        "--database-url", help="empty database to use [default: SQLite in a temporary folder]"
    )
    parser.add_argument("--tree", type=Path, help="checkout whose coordinator is started [default: this one]")
    chosen = parse(parser, {"clients": 20, "seconds": 1.0, "wait": 2.0, "settle": 0.0})
    print_result(
        lambda folder: measure(
            folder,
            clients=chosen.clients,
            seconds=chosen.seconds,
            wait_seconds=chosen.wait,
            settle_seconds=chosen.settle,
            tree=chosen.tree,
            database_url=chosen.database_url,
        )
    )


if __name__ == "__main__":
    main()
