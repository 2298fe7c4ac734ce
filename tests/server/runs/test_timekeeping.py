"""A clock that is set, a host that sleeps, a coordinator that was away: none of it counts for a deadline."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from server.api.operations import _vital_checks
from server.app import make_coordinator
from server.clock import Clock
from server.coordinator import Coordinator
from server.lifecycle.events import ClientEnrolled
from server.runs.timekeeping import NOTE_SECONDS, find_uncounted
from shared.problems import StorageUnavailable
from shared.schemas import Role, RoundStatus
from tests.helpers.live_coordinator import settings_for
from tests.helpers.store_play import NOW, RUN, Story, later

NOTHING = dt.timedelta(0)
HOUR = dt.timedelta(hours=1)
DEADLINE_SECONDS = 3600


class Host:
    """A host whose clock a test sets and which it suspends; ``pass_time`` is time as it is."""

    def __init__(self, wall: dt.datetime = NOW) -> None:
        self.wall = wall
        self.seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        self.wall += dt.timedelta(seconds=seconds)
        self.seconds += seconds

    def set(self, step: dt.timedelta) -> None:
        """Also what a suspended host finds when it wakes up."""
        self.wall += step

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.seconds)


Start = Callable[[Host], Coordinator]
Find = Callable[[dt.datetime | None], dt.timedelta]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Start:
    def one(host: Host) -> Coordinator:
        coordinator = make_coordinator(settings_for(database_url, tmp_path / "data"), host.clock())
        coordinator.timekeeper.start()
        return coordinator

    return one


@contextmanager
def no_database(at: Coordinator) -> Iterator[None]:
    """It refuses every statement."""

    def refuse(connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("BEGIN", None, Exception("the database is gone"))

    sa.event.listen(at.store.engine, "begin", refuse)
    try:
        yield
    finally:
        sa.event.remove(at.store.engine, "begin", refuse)


def open_round(at: Coordinator) -> None:
    story = Story(at.store.engine)
    story.create(round_deadline_seconds=DEADLINE_SECONDS, min_clients=1, weighting={"kind": "sizes"})
    story.register("north")
    at.runner.commit(RUN, ClientEnrolled("north", Role.TRAINER, 10), actor="north")


def look(at: Coordinator) -> RoundStatus:
    """What the sweep does every second."""
    if at.timekeeper.keep():
        at.runner._pass_time()
    return at.store.round_view(RUN, 1, 1).status


def find_readiness(at: Coordinator) -> dict[str, str]:
    return asyncio.run(at.readiness.find(_vital_checks(at)))


def deadline(at: Coordinator) -> dt.datetime:
    found = at.store.round_view(RUN, 1, 1).deadline_at
    assert found is not None
    return found


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR, dt.timedelta(days=400), dt.timedelta(seconds=-3)])
def test_a_step_of_the_clock_leaves_a_round_the_time_it_had(start: Start, step: dt.timedelta) -> None:
    host = Host()
    at = start(host)
    open_round(at)
    host.pass_time(DEADLINE_SECONDS - 100)
    assert look(at) is RoundStatus.COLLECTING
    host.set(step)
    assert look(at) is RoundStatus.COLLECTING
    assert deadline(at) - host.wall == dt.timedelta(seconds=100)
    assert at.clock() == host.wall, "what is recorded from now on has the right time of day"
    host.pass_time(99)
    assert look(at) is RoundStatus.COLLECTING
    host.pass_time(1)
    assert look(at) is RoundStatus.ABANDONED
    moved = [event for event in at.store.events(run=RUN) if event.kind == "deadline_moved"]
    assert [event.detail["absence_seconds"] for event in moved] == [step.total_seconds()]
    at.close()


def test_a_clock_that_drifts_is_followed_and_moves_nothing(start: Start) -> None:
    host = Host()
    at = start(host)
    open_round(at)
    for _ in range(20):
        host.pass_time(NOTE_SECONDS)
        host.set(dt.timedelta(milliseconds=400))
        look(at)
    assert at.clock() == host.wall
    assert deadline(at) == later(DEADLINE_SECONDS)
    at.close()


@pytest.mark.parametrize("step", [NOTHING, HOUR, -HOUR])
def test_a_coordinator_that_was_away_while_the_clock_was_set(start: Start, step: dt.timedelta) -> None:
    host = Host()
    first = start(host)
    open_round(first)
    host.pass_time(DEADLINE_SECONDS - 100)
    look(first)
    first.close()
    host.pass_time(7200)
    host.set(step)
    second = start(host)
    assert look(second) is RoundStatus.COLLECTING
    assert deadline(second) - host.wall == dt.timedelta(seconds=100)
    second.close()


@pytest.mark.parametrize("step", [NOTHING, HOUR, -HOUR])
def test_a_database_that_was_away_leaves_a_round_the_time_it_had(start: Start, step: dt.timedelta) -> None:
    """Who trained meanwhile could deliver to nobody, although the coordinator was there."""
    host = Host()
    at = start(host)
    open_round(at)
    host.pass_time(DEADLINE_SECONDS - 100)
    assert look(at) is RoundStatus.COLLECTING
    with no_database(at):
        for _ in range(100):
            host.pass_time(NOTE_SECONDS)
            with pytest.raises(StorageUnavailable):
                at.timekeeper.keep()
    host.set(step)
    assert look(at) is RoundStatus.COLLECTING
    assert deadline(at) - host.wall == dt.timedelta(seconds=100 - NOTE_SECONDS)
    host.pass_time(100 - NOTE_SECONDS)
    assert look(at) is RoundStatus.ABANDONED
    at.close()


def test_a_database_that_keeps_a_coordinator_waiting_counts_for_no_deadline(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that returns after two hours, as of a suspended host."""
    host = Host()
    at = start(host)
    open_round(at)
    note = at.store.note_alive

    def note_late(now: dt.datetime, find: Find) -> dt.timedelta:
        host.pass_time(7200)
        return note(now, find)

    host.pass_time(DEADLINE_SECONDS - 100)
    monkeypatch.setattr(at.store, "note_alive", note_late)
    at.timekeeper.keep()
    monkeypatch.undo()
    assert look(at) is RoundStatus.COLLECTING
    assert deadline(at) - host.wall == dt.timedelta(seconds=100)
    at.close()


class Unreachable:
    """The database goes again as the second of two runs is moved, once."""

    def __init__(self, at: Coordinator) -> None:
        self.is_there = False
        self._engine = at.store.engine
        self._moved = 0
        sa.event.listen(self._engine, "before_cursor_execute", self._refuse)

    def _refuse(self, _c: object, _cursor: object, statement: str, *_more: object) -> None:
        if not self.is_there and statement.startswith("UPDATE rounds"):
            self._moved += 1
            if self._moved == 2:
                self.is_there = True
                raise sa.exc.OperationalError("UPDATE", None, Exception("gone again"))


def open_two(at: Coordinator) -> tuple[str, str]:
    story = Story(at.store.engine)
    story.register("client-1")
    for run in ("a-run", "b-run"):
        story.create(run, round_deadline_seconds=DEADLINE_SECONDS, min_clients=1, weighting={"kind": "sizes"})
        at.runner.commit(run, ClientEnrolled("client-1", Role.TRAINER, 10), actor="client-1")
    return "a-run", "b-run"


def left(at: Coordinator, host: Host, run: str) -> float:
    until = at.store.round_view(run, 1, 1).deadline_at
    assert until is not None
    return (until - host.wall).total_seconds()


def test_an_outage_that_is_interrupted_counts_for_every_run(start: Start) -> None:
    host = Host()
    at = start(host)
    runs = open_two(at)
    host.pass_time(DEADLINE_SECONDS - 100)
    at.timekeeper.keep()
    host.pass_time(NOTE_SECONDS)
    with no_database(at):
        for _ in range(120):
            with pytest.raises(StorageUnavailable):
                at.timekeeper.keep()
            host.pass_time(5)
    database = Unreachable(at)
    with pytest.raises(StorageUnavailable):
        at.timekeeper.keep()
    assert database.is_there
    at.timekeeper.keep()
    assert [left(at, host, run) for run in runs] == [100 - NOTE_SECONDS] * 2
    at.close()


def test_a_start_that_is_interrupted_after_an_absence_gives_every_run_its_time(start: Start) -> None:
    host = Host()
    at = start(host)
    runs = open_two(at)
    host.pass_time(1800)
    at.timekeeper.keep()
    host.pass_time(7200)
    database = Unreachable(at)
    with pytest.raises(StorageUnavailable):
        at.timekeeper.start()
    assert database.is_there
    at.close()
    host.pass_time(10)
    again = start(host)
    assert [left(again, host, run) for run in runs] == [1800, 1800]
    again.close()


def test_a_run_that_cannot_be_read_keeps_its_own_deadline_only(start: Start) -> None:
    host = Host()
    at = start(host)
    one, other = open_two(at)
    with at.store.engine.begin() as connection:
        damaged = sa.text("UPDATE runs SET config = '{}', revision = revision + 1 WHERE run = :run")
        connection.execute(damaged, {"run": one})
    at.close()
    host.pass_time(7200)
    again = start(host)
    assert left(again, host, other) == DEADLINE_SECONDS
    again.close()


def test_a_database_that_takes_no_writes_is_not_ready(start: Start) -> None:
    """A standby in the place of the primary answers all the same."""
    host = Host()
    at = start(host)
    at.timekeeper.keep()
    with no_database(at):
        for _ in range(4):
            at.timekeeper.check()
            host.pass_time(NOTE_SECONDS)
            with pytest.raises(StorageUnavailable):
                at.timekeeper.keep()
    host.pass_time(NOTE_SECONDS)
    assert "taken nothing for 20 s" in find_readiness(at)["database"]
    at.timekeeper.keep()
    assert find_readiness(at)["database"] == "ok"
    at.close()


@pytest.mark.parametrize("last", [0, 1])
def test_two_coordinators_without_their_database_move_a_deadline_once(start: Start, last: int) -> None:
    """Whichever of them noted last before, and looks first afterwards."""
    host = Host()
    both = (start(host), start(host))
    open_round(both[0])
    for at in (both[1 - last], both[last]):
        host.pass_time(NOTE_SECONDS)
        assert look(at) is RoundStatus.COLLECTING
    host.pass_time(NOTE_SECONDS)
    for at in both:
        with no_database(at), pytest.raises(StorageUnavailable):
            at.timekeeper.keep()
    host.pass_time(2 * DEADLINE_SECONDS)
    for at in (*both, *both):
        assert look(at) is RoundStatus.COLLECTING
        host.pass_time(1)
    assert deadline(both[0]) - host.wall == dt.timedelta(seconds=DEADLINE_SECONDS - 3 * NOTE_SECONDS - 4)
    for at in both:
        at.close()


def test_nobody_is_timed_out_while_another_coordinator_moves_the_deadlines(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is back: the one is about to note it, and to move them, when the other looks."""
    host = Host()
    one, two = start(host), start(host)
    open_round(one)
    host.pass_time(NOTE_SECONDS)
    for at in (one, two):
        with no_database(at), pytest.raises(StorageUnavailable):
            at.timekeeper.keep()
    host.pass_time(2 * DEADLINE_SECONDS)
    count = one.store.count_absence

    def count_late(*arguments: Any, **more: Any) -> Any:
        assert look(two) is RoundStatus.COLLECTING
        return count(*arguments, **more)

    monkeypatch.setattr(one.store, "count_absence", count_late)
    assert look(one) is RoundStatus.COLLECTING
    host.pass_time(1)
    assert look(two) is RoundStatus.COLLECTING
    assert deadline(one) - host.wall == dt.timedelta(seconds=DEADLINE_SECONDS - NOTE_SECONDS - 1)
    one.close()
    two.close()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_two_coordinators_move_a_deadline_once(start: Start, step: dt.timedelta) -> None:
    """Both go by one clock (the database's), which is set; each sees the step when it looks."""
    host = Host()
    one, two = start(host), start(host)
    open_round(one)
    host.pass_time(NOTE_SECONDS)
    assert (look(one), look(two)) == (RoundStatus.COLLECTING,) * 2
    host.set(step)
    for at in (one, two, one, two):
        assert look(at) is RoundStatus.COLLECTING
        host.pass_time(1)
    assert deadline(one) - host.wall == dt.timedelta(seconds=DEADLINE_SECONDS - NOTE_SECONDS - 4)
    one.close()
    two.close()


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_round_opens_by_the_clock_as_another_coordinator_has_seen_it(
    start: Start, step: dt.timedelta
) -> None:
    """The one has moved the deadlines that there were; the other opens a round before it looks itself."""
    host = Host()
    one, two = start(host), start(host)
    for at in (one, two):
        at.timekeeper.keep()
    host.pass_time(1)
    host.set(step)
    one.timekeeper.keep()
    open_round(two)
    host.pass_time(1)
    assert (look(two), look(one)) == (RoundStatus.COLLECTING,) * 2
    assert deadline(two) - host.wall == dt.timedelta(seconds=DEADLINE_SECONDS - 1)
    one.close()
    two.close()


def test_a_process_that_was_suspended_beside_another_moves_nothing(start: Start) -> None:
    host, other = Host(), Host()
    suspended, awake = start(host), start(other)
    open_round(awake)
    for _ in range(100):
        other.pass_time(NOTE_SECONDS)
        look(awake)
    host.set(dt.timedelta(seconds=100 * NOTE_SECONDS))
    assert look(suspended) is RoundStatus.COLLECTING
    assert deadline(awake) == later(DEADLINE_SECONDS)
    suspended.close()
    awake.close()


def test_a_round_opened_after_the_clock_was_set_is_left_alone(start: Start) -> None:
    host = Host()
    at = start(host)
    host.set(2 * HOUR)
    at.timekeeper.keep()
    open_round(at)
    at.timekeeper.keep()
    assert deadline(at) == host.wall + dt.timedelta(seconds=DEADLINE_SECONDS)
    at.close()


@given(
    step=st.timedeltas(-dt.timedelta(days=3650), dt.timedelta(days=3650)),
    elapsed=st.floats(0, NOTE_SECONDS),
    others=st.booleans(),
)
def test_a_step_that_nobody_has_seen_counts_whole(step: dt.timedelta, elapsed: float, others: bool) -> None:
    """Whether this process noted last, or another one that goes by the same clock."""
    own = NOW + dt.timedelta(seconds=elapsed)
    found = find_uncounted(NOW, NOW - HOUR if others else NOW, own, own + step)
    if not others or abs(step) > dt.timedelta(seconds=4 * NOTE_SECONDS):
        assert found == (step if abs(step) >= dt.timedelta(seconds=1) else NOTHING)
    else:
        assert found in (step, NOTHING)


def test_a_new_database_has_nothing_to_make_up_for() -> None:
    assert find_uncounted(None, None, NOW, NOW + HOUR) == NOTHING
