"""1,000 waiting clients: the share of a core that they cost, and how soon a new run reaches them all.

A real coordinator in a process of its own on SQLite; the clients are raw connections in this process, so
that what is measured is the coordinator. Prints one JSON line. Target (DESIGN, section 9): under 20 % of a
core, the next assignment within 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from server.database.migrations import upgrade
from server.database.session import make_engine
from server.database.store import Store

ROOT = Path(__file__).resolve().parent.parent
ADMIN = "admin-token-of-the-benchmark"
WAIT_SECONDS = 30
TARGET_SHARE, TARGET_SECONDS = 0.20, 1.0
SERVE = (
    "import json, sys; from server.main import serve; from server.settings import Settings; "
    "sys.exit(serve(Settings(**json.loads(sys.argv[1]))))"
)


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

    def __init__(self, host: str, port: int, token: str) -> None:
        self._address = host, port
        lines = (
            f"GET /api/v1/work?wait={WAIT_SECONDS} HTTP/1.1",
            f"Host: {host}",
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


async def measure(url: str, tokens: list[str], process: psutil.Process, seconds: float) -> dict[str, Any]:
    parts = httpx.URL(url)
    pollers = [Poller(parts.host, parts.port or 80, token) for token in tokens]
    tasks = []
    for poller in pollers:  # spread over the waiting time, as clients that live for long are
        tasks.append(asyncio.create_task(poller.run()))
        await asyncio.sleep(WAIT_SECONDS / len(pollers) / 2)
    asked = -sum(poller.polls for poller in pollers)
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after, ended = process.cpu_times(), time.monotonic()
    asked += sum(poller.polls for poller in pollers)
    used = after.user + after.system - before.user - before.system
    created = await asyncio.to_thread(create_run, url)
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    delays = sorted(poller.assigned_at - created for poller in pollers if poller.assigned_at is not None)
    return {
        "share_of_a_core": round(used / (ended - began), 4),
        "polls_per_second": round(asked / (ended - began), 1),
        "median_seconds_to_assignment": round(delays[len(delays) // 2], 3),
        "last_seconds_to_assignment": round(delays[-1], 3),
        "megabytes": round(process.memory_info().rss / 1e6),
    }


def create_run(url: str) -> float:
    """A run of a built-in task; when it was there, in seconds since the epoch (one machine, one clock)."""
    headers, body = {"Authorization": f"Bearer {ADMIN}"}, {"config": {"name": "bench"}}
    answer = httpx.post(f"{url}/api/v1/runs", json=body, headers=headers, timeout=120)
    answer.raise_for_status()
    return dt.datetime.fromisoformat(answer.json()["created_at"]).timestamp()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=1000)
    options.add_argument("--seconds", type=float, default=60.0)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/bench.sqlite"
        upgrade(database)
        tokens = register(database, chosen.clients)
        given = {"data_folder": f"{folder}/data", "database_url": database, "port": 0, "admin_token": ADMIN}
        command = [sys.executable, "-c", SERVE, json.dumps(given)]
        running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            assert running.stderr is not None
            url = next(line for line in running.stderr if "coordinator on" in line).rsplit(" ", 1)[1].strip()
            time.sleep(10)  # PyTorch is imported in the background
            found = asyncio.run(measure(url, tokens, psutil.Process(running.pid), chosen.seconds))
        finally:
            running.terminate()
            running.wait()
    soon = found["median_seconds_to_assignment"] <= TARGET_SECONDS
    within = soon and found["share_of_a_core"] <= TARGET_SHARE
    print(json.dumps({"benchmark": "polling", "clients": chosen.clients, **found, "within_target": within}))


if __name__ == "__main__":
    main()
