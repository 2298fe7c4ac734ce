"""An honest run of ten clients, alone and beside loads: its round time, the coordinator's memory, errors.

A real coordinator in a process of its own on SQLite; the ten clients are connections of this process, and
send the model back that they were given, after some heartbeats (``benchmarks.viewers``). Each load comes from
a process of its own, on the same cores: its CPU time is named beside. Quiet rounds and rounds under load are
measured in turn, the better of each counts. Any error to an honest client ends the benchmark. Prints one
JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from benchmarks.browsers import find_chromium
from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import Deployment, deployment
from benchmarks.load_generators import CROWD, Load, under_load
from benchmarks.polling import register
from benchmarks.viewers import RUN, Client, find_newest_event, measure_rounds, play
from server.database.migrations import upgrade
from shared.config import RunConfig
from shared.schemas import RunRequest

HONEST: Final = 10
MANY: Final = {
    "polls": 3000,
    "uploads": 200,
    "streams": 500,
    "viewers": 50,
    "browsers": 50,
    "loris": 300,
    "flood": 20,
}
TOGETHER: Final = "together"


class Honest:
    """The ten clients and their run; rounds are played one after the other, in any number of goes."""

    def __init__(self, running: Deployment, clients: list[Client]) -> None:
        self.running = running
        self._clients = clients
        self._next = 1

    async def measure(self, rounds: int) -> dict[str, float]:
        numbers = range(self._next, self._next + rounds)
        self._next += rounds
        return await measure_rounds(self.running, self._clients, numbers)

    def warm_up(self, rounds: int) -> None:
        asyncio.run(play(self._clients, range(self._next, self._next + rounds)))
        self._next += rounds


@contextlib.contextmanager
def honest_run(running: Deployment, tokens: list[str], rounds: int) -> Iterator[Honest]:
    create(running, RUN, rounds, range(HONEST))
    classes = list(running.admin.run(RUN).classes)
    clients = [Client(running.url, token) for token in tokens[:HONEST]]
    try:
        for client in clients:
            client.enrol(classes)
        yield Honest(running, clients)
    finally:
        for client in clients:
            client.close()


def create(running: Deployment, run: str, rounds: int, clients: range) -> None:
    """Only these may take part: the others' polls find nothing to do."""
    config = RunConfig.model_validate(
        {
            "name": run,
            "rounds": rounds,
            "min_clients": len(clients),
            "participants": [f"client-{index:05d}" for index in clients],
            "evaluate_every": 0,
            "keep_updates": 0,
            "weighting": {"kind": "sizes"},
        }
    )
    running.admin.create(RunRequest(config=config))


def measure(folder: Path, *, share: float, rounds: int, repeats: int, browsers: bool) -> dict[str, Any]:
    """``share``: of :data:`MANY`, at least two of each; ``browsers`` too, unless Chromium is missing."""
    many = {kind: max(2, round(number * share)) for kind, number in MANY.items()}
    if not browsers or find_chromium() is None:
        del many["browsers"]
    database = f"sqlite:///{folder}/bench.sqlite"
    upgrade(database)
    tokens = register(database, HONEST + many["uploads"] + many["polls"])
    goes = (len(many) + 1) * repeats * 2 + 1
    with deployment(folder, database) as running, honest_run(running, tokens, goes * rounds) as honest:
        create(running, CROWD, 1_000_000, range(HONEST, HONEST + many["uploads"]))
        honest.warm_up(rounds)
        results = {}
        for kind in (*many, TOGETHER):
            kinds = tuple(many) if kind == TOGETHER else (kind,)
            results[kind] = compare(honest, make_loads(running, kinds, many, tokens), rounds, repeats)
    return {
        "benchmark": "load",
        "rounds": rounds,
        "repeats": repeats,
        "many": many,
        **machine(),
        "loads": results,
    }


def make_loads(
    running: Deployment, kinds: tuple[str, ...], many: Mapping[str, int], tokens: list[str]
) -> list[Load]:
    uploading = HONEST + many["uploads"]
    players = {"uploads": tokens[HONEST:uploading], "polls": tokens[uploading:]}
    after = find_newest_event(running)
    return [Load(kind, many[kind], running.url, players.get(kind, ()), after) for kind in kinds]


def compare(honest: Honest, loads: list[Load], rounds: int, repeats: int) -> dict[str, Any]:
    process = psutil.Process(honest.running.processes.running["coordinator"].pid)
    quiet: list[dict[str, float]] = []
    loaded: list[dict[str, float]] = []
    highest: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    cpu_seconds = 0.0
    for _ in range(repeats):
        quiet.append(asyncio.run(honest.measure(rounds)))
        with under_load(loads) as reports:
            loaded.append(asyncio.run(honest.measure(rounds)))
            highest |= Counter(
                megabytes=round(process.memory_info().rss / 1e6), descriptors=process.num_fds()
            )
        for report in reports:
            counts.update(report.counts)
            cpu_seconds += report.cpu_seconds
    return {
        "quiet": min(quiet, key=_seconds),
        "loaded": min(loaded, key=_seconds),
        **highest,
        "load_cpu_seconds": round(cpu_seconds, 1),
        "answered": dict(sorted(counts.items())),
        "load_average": round(os.getloadavg()[0], 1),
        "errors_to_honest_clients": 0,  # any would have ended this
    }


def _seconds(found: dict[str, float]) -> float:
    return found["seconds_a_round"]


def guarded(folder: Path, **chosen: Any) -> dict[str, Any]:
    """An honest client that is refused is a failed benchmark."""
    try:
        return measure(folder, **chosen)
    except* httpx.HTTPError as errors:
        raise Failed(f"An honest client was not served: {errors.exceptions[0]}") from errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers of each load")
    parser.add_argument("--rounds", type=int, default=3, help="that are measured, each time")
    parser.add_argument("--repeats", type=int, default=2, help="of quiet and loaded rounds in turn")
    parser.add_argument(
        "--browsers", action="store_true", help="also 50 pages in Chromium: some minutes more"
    )
    chosen = parse(parser, {"share": 0.01, "rounds": 1, "repeats": 1, "browsers": True})
    print_result(
        lambda folder: guarded(
            folder,
            share=chosen.share,
            rounds=chosen.rounds,
            repeats=chosen.repeats,
            browsers=chosen.browsers,
        )
    )


if __name__ == "__main__":
    main()
