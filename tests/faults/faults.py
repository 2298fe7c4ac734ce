"""What can happen to a federation of real processes while a run of it is under way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

import httpx

from shared.problems import Problem
from tests.faults.federation import JUDGE, TRAINERS, Federation

__all__ = ["Fault", "draw_fault"]


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
        for _ in range(20):  # others write meanwhile: less may be free than a moment ago
            free = shutil.disk_usage(fed.system.data_folder).free
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free - left))
                break
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
    there = [each.run for each in fed.system.admin.find_runs(archived=True)]
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


def draw_fault(fed: Federation, seed: int) -> Fault:
    """Each once in a turn, in another order each time."""
    faults = list_faults(fed)
    turn, place = divmod(seed, len(faults))
    return random.Random(f"turn {turn}").sample(faults, len(faults))[place]
