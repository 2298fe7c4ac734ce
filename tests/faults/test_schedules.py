"""Thousands of schedules of the state machine, and some of the coordinator's objects over a real database.

One seed again: ``pytest tests/faults/test_schedules.py --schedule SEED``. A schedule that fails leaves its
steps and its history in a folder, which the failure names.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.history import History, Result, find_violations
from tests.faults.memory_world import MemoryWorld
from tests.faults.schedules import Plan, Schedule, World, draw_plan
from tests.faults.stored_world import StoredWorld
from tests.helpers.databases import Postgres

STEPS = 40
IN_MEMORY, MORE_IN_MEMORY = 2500, 10_000
"""Every fourth, and with ``make test-slow`` all others too: two thousandths of a second each."""
STORED, MORE_STORED = 6, 20
"""A second each, and more where a disk is slow to sync."""
STORED_PLANS, MORE_STORED_PLANS = 3, 8
"""Each is also played without faults, which takes as long."""
COORDINATORS = 2
"""On PostgreSQL; SQLite serves one."""

MakeWorld = Callable[[Plan, int], World]


class Player:
    """Plays schedules in worlds of one kind; what a plan gives without faults is found once."""

    def __init__(self, make: MakeWorld, folder: Path, plans: int) -> None:
        self._make = make
        self._folder = folder
        self._plans = plans
        self._undisturbed: dict[Plan, Result | None] = {}
        self.seen: Counter[str] = Counter()

    def play(self, seed: int, steps: int = STEPS) -> None:
        plan = draw_plan(seed % self._plans)
        if plan not in self._undisturbed:
            self._undisturbed[plan] = Schedule(self._make(plan, -1), plan, 0).play(0).result
        schedule = Schedule(self._make(plan, seed), plan, seed)
        try:
            history = schedule.play(steps)
            history.undisturbed = self._undisturbed[plan]
            found = [str(violation) for violation in find_violations(history)]
        except Exception as error:
            self._keep(seed, schedule)
            raise AssertionError(self._describe(seed, plan, [repr(error)])) from error
        if found:
            self._keep(seed, schedule)
            raise AssertionError(self._describe(seed, plan, found))
        self._count(history)

    def _keep(self, seed: int, schedule: Schedule) -> None:
        folder = self._folder / f"schedule-{seed}"
        folder.mkdir(exist_ok=True)
        (folder / "steps.txt").write_text("\n".join(schedule.trace), encoding="utf-8")
        schedule.history.write(folder / "history.json")

    def _describe(self, seed: int, plan: Plan, found: list[str]) -> str:
        return "\n".join(
            (
                f"schedule {seed} of {plan}, kept in {self._folder}:",
                *found,
                f"again: pytest tests/faults/test_schedules.py --schedule {seed}",
            )
        )

    def _count(self, history: History) -> None:
        """What the schedules have met, so that they are known to meet something."""
        assert history.result is not None
        self.seen.update(sent.answer for sent in history.sent)
        self.seen.update(sent.reason for sent in history.sent)
        self.seen.update(a.status for a in history.result.attempts)
        self.seen.update(row.status for a in history.result.attempts for row in a.rows)


def choose(request: pytest.FixtureRequest, usual: range) -> range:
    chosen: int | None = request.config.getoption("--schedule")
    return usual if chosen is None else range(chosen, chosen + 1)


def play_in_memory(folder: Path, chosen: range) -> None:
    player = Player(lambda plan, seed: MemoryWorld(plan), folder, MORE_IN_MEMORY)
    for seed in chosen:
        player.play(seed)
    if len(chosen) > 1:
        wanted = {"acknowledged", "refused", "lost", "update-late", "update-stale", "update-already-received"}
        wanted |= {"completed", "abandoned", "rewound", "aggregated", "failed", "timed_out"}
        assert wanted <= player.seen.keys()


@pytest.mark.timeout(600)
def test_schedules_of_the_state_machine(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play_in_memory(tmp_path, choose(request, range(0, MORE_IN_MEMORY, MORE_IN_MEMORY // IN_MEMORY)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_schedules_of_the_state_machine(tmp_path: Path) -> None:
    play_in_memory(tmp_path, range(MORE_IN_MEMORY))


def play_stored(folder: Path, databases: Iterator[str], chosen: range, plans: int, coordinators: int) -> None:
    """Each world is closed before the next one is made."""
    worlds: list[StoredWorld] = []
    places = itertools.count()

    def make(plan: Plan, seed: int) -> StoredWorld:
        while worlds:
            worlds.pop().close()
        place = folder / f"{seed}-{next(places)}"
        place.mkdir()
        worlds.append(StoredWorld(plan, next(databases), place, coordinators))
        return worlds[-1]

    player = Player(make, folder, plans)
    for seed in chosen:
        player.play(seed)
    while worlds:
        worlds.pop().close()


def copy_sqlite(folder: Path, migrated: Path) -> Iterator[str]:
    for number in itertools.count():
        copy = folder / f"{number}.sqlite"
        shutil.copyfile(migrated, copy)
        yield f"sqlite:///{copy}"


def recycle_postgres(postgres: Postgres) -> Generator[str]:
    """One database, emptied each time."""
    while True:
        url = postgres.fresh()
        try:
            yield url
        finally:
            postgres.recycle(url)


@pytest.mark.timeout(600)
def test_schedules_over_sqlite(request: pytest.FixtureRequest, tmp_path: Path, migrated_sqlite: Path) -> None:
    databases = copy_sqlite(tmp_path, migrated_sqlite)
    play_stored(tmp_path, databases, choose(request, range(STORED)), STORED_PLANS, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_schedules_over_sqlite(tmp_path: Path, migrated_sqlite: Path) -> None:
    databases = copy_sqlite(tmp_path, migrated_sqlite)
    play_stored(tmp_path, databases, range(MORE_STORED), MORE_STORED_PLANS, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_schedules_over_postgresql(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres
) -> None:
    databases = recycle_postgres(postgres)
    chosen = choose(request, range(MORE_STORED))
    play_stored(tmp_path, databases, chosen, MORE_STORED_PLANS, COORDINATORS)
    databases.close()
