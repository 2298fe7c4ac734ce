"""What 300 viewers cost: the coordinator's processor time for a round, and how long an upload takes.

A real coordinator in a process of its own on SQLite. Clients and viewers are connections of this process, so
that what is measured is the coordinator. The clients send the model that they were given, after a few
heartbeats. Viewers follow the events of the run; with ``--pages`` they also fetch its page again whenever
something happens, at the pace that the page gives, as its script does. Prints one JSON line. Target
(issue 9): the viewers add less than a tenth to a round's processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import Deployment, deployment
from benchmarks.polling import register
from server.database.migrations import upgrade
from server.pages.kept import REFETCH
from shared.config import RunConfig
from shared.schemas import RunRequest
from shared.wire.digests import format_content_digest

RUN = "bench"
CLIENTS, HEARTBEATS = 4, 5
TARGET_SHARE = 0.10
PATIENCE_SECONDS = 120.0


class Client:
    """Takes part in every round, without training."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60.0
        )
        self.upload_seconds: list[float] = []

    def close(self) -> None:
        self._http.close()

    def enrol(self, classes: list[str]) -> None:
        body = {"task": "digits", "examples": 100, "classes": classes}
        self._http.post(f"/runs/{RUN}/enrolments", json=body).raise_for_status()

    def take_part(self, round: int) -> None:
        """Wait for the round, send heartbeats and an update."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            asked = self._http.get("/work", params={"wait": 10}).raise_for_status().json()
            if asked["kind"] == "train" and asked["round"] == round:
                self._train(asked)
                return
        raise Failed(f"Round {round} did not open in {PATIENCE_SECONDS:g} s.")

    def _train(self, asked: dict[str, Any]) -> None:
        place = f"/runs/{RUN}/rounds/{asked['round']}"
        model = self._http.get(f"/blobs/{asked['model']}").raise_for_status().content
        for step in range(HEARTBEATS):
            beat = {"attempt": asked["attempt"], "step": step, "steps": HEARTBEATS}
            self._http.post(f"{place}/progress", json=beat).raise_for_status()
        began = time.monotonic()
        self._http.put(
            f"{place}/update",
            params={"attempt": asked["attempt"], "steps": 1, "examples": 100},
            content=model,
            headers={
                "Content-Type": "application/vnd.safetensors",
                "Content-Digest": format_content_digest(asked["model"]),
            },
        ).raise_for_status()
        self.upload_seconds.append(time.monotonic() - began)


class Viewer:
    """An open page's stream: reads and forgets. With ``pages`` it fetches the page when there is news.

    ``place``, from 0 to 1: when within a page's pace it does so, as pages that were opened one after another.
    """

    def __init__(self, url: httpx.URL, after: int, *, pages: bool, place: float = 0.0) -> None:
        self._address = url.host, url.port
        self._pages = pages
        self._place = place
        self.pace = 0.5
        self._news = asyncio.Event()
        self.fetched, self.unchanged = 0, 0
        path = f"/api/v1/runs/{RUN}/events?after={after}"
        self._request = f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode()
        self.bytes = 0

    async def run(self, opened: asyncio.Semaphore) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise Failed(f"A viewer was refused: {head.decode()[:200]}")
            opened.release()
            async with asyncio.TaskGroup() as tasks:
                if self._pages:
                    tasks.create_task(self._fetch_pages())
                while got := await reader.read(1 << 16):
                    self.bytes += len(got)
                    if b"data:" in got:
                        self._news.set()
        finally:
            writer.close()

    async def _fetch_pages(self) -> None:
        """On a connection of its own, as a browser keeps one."""
        reader, writer = await asyncio.open_connection(*self._address)
        etag = ""
        await self._news.wait()
        due = time.monotonic() + self._place * self.pace
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._news.clear()
                due = time.monotonic() + self.pace
                known = f"If-None-Match: {etag}\r\n" if etag else ""
                asked = f"GET /runs/{RUN} HTTP/1.1\r\nHost: {self._address[0]}\r\nAccept: text/html\r\n"
                writer.write(f"{asked}{REFETCH}: 1\r\n{known}\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = re.search(r"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.fetched += 1
                if head.startswith("http/1.1 304"):
                    self.unchanged += 1
                    continue
                if not head.startswith("http/1.1 200"):
                    raise Failed(f"A page was refused: {head[:200]}")
                etag = head.partition("etag: ")[2].partition("\r\n")[0]
                self.pace = find_pace(body.decode())
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def watching(url: str, many: int, after: int, *, pages: bool) -> AsyncIterator[list[Viewer]]:
    """Viewers whose streams are open."""
    viewers = [Viewer(httpx.URL(url), after, pages=pages, place=n / many) for n in range(many)]
    opened = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(viewer.run(opened)) for viewer in viewers]
    try:
        for _ in range(many):
            await asyncio.wait_for(opened.acquire(), PATIENCE_SECONDS)
        pace = find_pace(await asyncio.to_thread(load_page, url))
        for viewer in viewers:
            viewer.pace = pace
        yield viewers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play(clients: list[Client], rounds: range, seconds: float = 0.0) -> None:
    """Each round lasts ``seconds`` at least."""
    for number in rounds:
        work = [asyncio.to_thread(client.take_part, number) for client in clients]
        await asyncio.gather(*work, asyncio.sleep(seconds))


async def measure_rounds(
    running: Deployment, clients: list[Client], rounds: range, seconds: float = 0.0
) -> dict[str, float]:
    process = psutil.Process(running.processes.running["coordinator"].pid)
    for client in clients:
        client.upload_seconds.clear()
    before, began = process.cpu_times(), time.monotonic()
    await play(clients, rounds, seconds)
    after, ended = process.cpu_times(), time.monotonic()
    used = after.user + after.system - before.user - before.system
    uploads = [seconds for client in clients for seconds in client.upload_seconds]
    return {
        "cpu_seconds_a_round": round(used / len(rounds), 4),
        "seconds_a_round": round((ended - began) / len(rounds), 3),
        "median_upload_seconds": round(statistics.median(uploads), 4),
        "longest_upload_seconds": round(max(uploads), 3),
    }


@contextlib.contextmanager
def enrolled(running: Deployment, tokens: list[str], rounds: int) -> Iterator[list[Client]]:
    config = RunConfig.model_validate(
        {
            "name": RUN,
            "rounds": rounds,
            "min_clients": len(tokens),
            "evaluate_every": 0,
            "weighting": {"kind": "sizes"},
        }
    )
    view = running.admin.create(RunRequest(config=config))
    clients = [Client(running.url, token) for token in tokens]
    try:
        for client in clients:
            client.enrol(list(view.classes))
        yield clients
    finally:
        for client in clients:
            client.close()


def load_page(url: str) -> str:
    return httpx.get(f"{url}/runs/{RUN}", headers={"Accept": "text/html"}, timeout=60.0).text


def find_pace(page: str) -> float:
    """How often the page says that its script may ask for it again, in seconds."""
    found = re.search(r'data-pace="([\d.]+)"', page)
    if found is None:
        raise Failed("The page of the run names no pace.")
    return float(found[1])


def find_newest_event(running: Deployment) -> int:
    """What an open page asks its stream for: all that it does not show yet."""
    found = re.search(r"/events\?after=(\d+)", load_page(running.url))
    if found is None:
        raise Failed("The page of the run names no stream.")
    return int(found[1])


async def compare(
    running: Deployment, clients: list[Client], viewers: int, rounds: int, *, pages: bool, seconds: float
) -> dict[str, Any]:
    """The same number of rounds without viewers and with them, after some to warm up, each time."""
    await play(clients, range(1, rounds + 1))
    alone = await measure_rounds(running, clients, range(rounds + 1, 2 * rounds + 1), seconds)
    async with watching(running.url, viewers, find_newest_event(running), pages=pages) as open_streams:
        await play(clients, range(2 * rounds + 1, 3 * rounds + 1), seconds)
        before = sum(viewer.fetched for viewer in open_streams)
        watched = await measure_rounds(running, clients, range(3 * rounds + 1, 4 * rounds + 1), seconds)
        each = statistics.mean(viewer.bytes for viewer in open_streams)
        fetched = sum(viewer.fetched for viewer in open_streams) - before
    added = watched["cpu_seconds_a_round"] / alone["cpu_seconds_a_round"] - 1
    return {
        "alone": alone,
        "watched": watched,
        "bytes_a_viewer": round(each),
        "pages_a_second": round(fetched / (rounds * watched["seconds_a_round"]), 1),
        "pace_seconds": open_streams[0].pace,
        "pages_unchanged": sum(viewer.unchanged for viewer in open_streams),
        "added_share": round(added, 3),
        "within_target": added <= TARGET_SHARE,
    }


def measure(
    folder: Path, *, viewers: int, rounds: int, pages: bool = False, seconds: float = 0.0
) -> dict[str, Any]:
    database = f"sqlite:///{folder}/bench.sqlite"
    upgrade(database)
    tokens = register(database, CLIENTS)
    with deployment(folder, database) as running, enrolled(running, tokens, 4 * rounds) as clients:
        found = asyncio.run(compare(running, clients, viewers, rounds, pages=pages, seconds=seconds))
    return {
        "benchmark": "viewers",
        "viewers": viewers,
        "rounds": rounds,
        "pages": pages,
        "least_seconds_a_round": seconds,
        **machine(),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are measured, each time")
    parser.add_argument("--pages", action="store_true", help="viewers fetch the run's page again, too")
    parser.add_argument("--seconds", type=float, default=0.0, help="that each measured round lasts at least")
    chosen = parse(parser, {"viewers": 5, "rounds": 1})

    def run(folder: Path) -> dict[str, Any]:
        return measure(
            folder,
            viewers=chosen.viewers,
            rounds=chosen.rounds,
            pages=chosen.pages,
            seconds=chosen.seconds,
        )

    print_result(run)


if __name__ == "__main__":
    main()
