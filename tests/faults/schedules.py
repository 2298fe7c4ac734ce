"""A run of a few clients under a seeded scheduler: it draws what happens next, and records what it was told.

Clients, operator, clock, disk and coordinators are all driven by one generator, so a seed is a schedule. What
the clients talk to is a :class:`World`: the state machine alone (``memory_world``), or the coordinator's own
objects over a real database and real files (``stored_world``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from shared.problems import Problem, UpdateRefused
from shared.schemas import Role
from tests.faults.history import Answer, History, Result, Sent

__all__ = ["CLIENTS", "DEADLINE_SECONDS", "JUDGE", "Body", "Plan", "Schedule", "Task", "World", "draw_plan"]

CLIENTS: Final = ("a", "b", "c", "d")
"""The last one comes late, if it is in the plan; its index is its place here."""
JUDGE: Final = "j"
DEADLINE_SECONDS: Final = 600.0
LONGEST_HEALING: Final = 60


@dataclass(frozen=True)
class Plan:
    """What is the same in all schedules of a kind, and so has one result without faults."""

    rounds: int = 2
    clients_per_round: int | None = None
    with_judge: bool = False
    with_latecomer: bool = False
    are_alike: bool = False
    """All clients send the same bytes in a round, as sites with the same data do."""
    keep_updates: int | None = None


@dataclass(frozen=True)
class Task:
    """What a client is to train; ``again``: its update is to be sent once more."""

    round: int
    attempt: int
    index: int
    model: str
    again: bool = False


@dataclass(frozen=True)
class Body:
    """An update; ``value`` is what its every number is."""

    digest: str
    content: bytes
    value: float | None


class World(Protocol):
    """What the schedule acts on. Whatever a client or the operator does may raise a :class:`Problem`."""

    presence: dict[tuple[int, int], float]

    def enrol(self, client: str, index: int | None, role: Role) -> None: ...
    def ask(self, client: str) -> Task | None: ...
    def train(self, task: Task) -> Body: ...
    def spoil(self, body: Body) -> Body: ...
    def check(self, client: str, task: Task, body: Body) -> bool:
        """Whether the body is to be sent; False: it was accepted before."""

    def deliver(self, client: str, task: Task, body: Body) -> None: ...
    def give_up(self, client: str, task: Task) -> None: ...
    def leave(self, client: str) -> None: ...
    def beat(self, client: str, task: Task) -> None: ...
    def score(self, client: str) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...
    def rewind(self, number: int) -> None: ...
    def begin_aggregation(self) -> None: ...
    def finish_aggregation(self, which: int) -> None: ...
    def pass_time(self, seconds: float) -> None: ...
    def set_clock(self, seconds: float) -> None: ...
    def be_away(self, seconds: float) -> None:
        """The coordinator is killed, and started again after this time."""

    def change_coordinator(self) -> None: ...
    def collect(self) -> None: ...
    def harm(self, draws: random.Random) -> None:
        """Something on the disk is damaged or deleted."""

    def look_around(self, reader: str, history: History) -> None: ...
    def has_ended(self) -> bool: ...
    def read_result(self) -> Result: ...


def draw_plan(seed: int) -> Plan:
    draws = random.Random(f"plan {seed}")
    return Plan(
        rounds=draws.choice((1, 2, 3)),
        clients_per_round=draws.choice((None, None, 2)),
        with_judge=draws.random() < 0.3,
        with_latecomer=draws.random() < 0.3,
        are_alike=draws.random() < 0.15,
        keep_updates=draws.choice((None, None, 0, 1)),
    )


@dataclass
class Site:
    """One client as its worker would be: what it is to do, and what it has not been able to deliver."""

    name: str
    index: int | None
    role: Role = Role.TRAINER
    is_enrolled: bool = False
    has_ended: bool = False
    task: Task | None = None
    unsent: tuple[Task, Body] | None = None
    sent: list[tuple[Task, Body]] = field(default_factory=list)


class Schedule:
    """Draws and does; :meth:`play` is all of it."""

    def __init__(self, world: World, plan: Plan, seed: int) -> None:
        self.world = world
        self.history = History(deadline_seconds=DEADLINE_SECONDS, presence=world.presence)
        self._draws = random.Random(f"schedule {seed}")
        names = CLIENTS if plan.with_latecomer else CLIENTS[:-1]
        self._sites = [Site(name, CLIENTS.index(name)) for name in names]
        if plan.with_judge:
            self._sites.append(Site(JUDGE, None, Role.EVALUATOR))
        self._trainers = [site for site in self._sites if site.role is Role.TRAINER]
        self._in_flight: list[tuple[Site, Task, Body]] = []
        self._begun_aggregations = 0
        self._is_late = plan.with_latecomer
        self.trace: list[str] = []

    def play(self, steps: int) -> History:
        """So many random steps, then everybody does what it should until the run ends."""
        kinds, weights = zip(*_STEPS.items(), strict=True)
        for step in self._draws.choices(kinds, weights, k=steps):
            if self.world.has_ended():
                break
            self._do(step)
        self.heal()
        self.history.result = self.world.read_result()
        return self.history

    def _do(self, step: Callable[[Schedule], None]) -> None:
        self.trace.append(step.__name__)
        try:
            step(self)
        except Problem as refused:
            self.trace.append(f"  {refused.code}: {refused.detail}")

    def heal(self) -> None:
        """From wherever the run is: without further faults it must end."""
        world = self.world
        world.be_away(1.0)
        self._in_flight.clear()
        for turn in range(LONGEST_HEALING):
            if world.has_ended():
                return
            self._do(Schedule.resume)
            for site in self._sites:
                self._work(site)
            self._do(Schedule.begin_aggregation)
            self._do(Schedule.finish_aggregation)
            world.pass_time(DEADLINE_SECONDS + 1 if turn % 4 == 3 else 1.0)  # whoever is gone is timed out

    # ---------------------------------------------------------------- clients

    def _site(self) -> Site:
        return self._draws.choice(self._sites)

    def _enrol(self, site: Site) -> None:
        self.world.enrol(site.name, site.index, site.role)
        site.is_enrolled = True

    def _ask(self, site: Site) -> None:
        if not site.is_enrolled:
            self._enrol(site)
            return
        if site.role is Role.EVALUATOR:
            self.world.score(site.name)
            return
        site.task = self.world.ask(site.name)

    def _train(self, site: Site) -> None:
        """As a worker does: what it had trained for this task already it sends again."""
        if (task := site.task) is None:
            return
        if site.unsent is None or site.unsent[0] != task:
            site.unsent = (task, self.world.train(task))

    def _deliver(self, site: Site, task: Task, body: Body, *, is_answer_lost: bool = False) -> None:
        try:
            self.world.deliver(site.name, task, body)
        except Problem as refused:
            self._note(site, task, body, "refused", refused)
            raise
        self._note(site, task, body, "lost" if is_answer_lost else "acknowledged")
        site.sent.append((task, body))
        if not is_answer_lost:
            site.task = site.unsent = None

    def _is_wanted(self, site: Site, task: Task, body: Body) -> bool:
        """What the coordinator says of an upload before its body."""
        try:
            return self.world.check(site.name, task, body)
        except Problem as refused:
            self._note(site, task, body, "refused", refused)
            raise

    def _note(
        self, site: Site, task: Task, body: Body, answer: Answer, refused: Problem | None = None
    ) -> None:
        if isinstance(refused, UpdateRefused) and site.unsent is not None and site.unsent[0] == task:
            site.task = site.unsent = None  # dropped, as the refusal says
        reason = "" if refused is None else refused.code
        sent = Sent(site.name, task.round, task.attempt, body.digest, answer, reason, body.value)
        self.history.sent.append(sent)
        self.trace.append(f"  {sent}")

    def _work(self, site: Site) -> None:
        """All that an undisturbed client does in a turn."""
        self._do(lambda schedule: schedule._ask(site))
        self._train(site)
        if (unsent := site.unsent) is not None and unsent[0] == site.task:
            self._do(lambda schedule: schedule._deliver(site, *unsent))

    # ---------------------------------------------------------------- steps that are drawn

    def ask(self) -> None:
        sites = self._sites
        if self._is_late:  # the latecomer has time
            sites = [site for site in sites if site.name != CLIENTS[-1]]
            self._is_late = self._draws.random() < 0.9
        site = self._draws.choice(sites)
        self._ask(site)
        self._train(site)

    def work(self) -> None:
        self._work(self._site())

    def begin_upload(self) -> None:
        site = self._site()
        self._ask(site)
        self._train(site)
        if site.unsent is not None and self._is_wanted(site, *site.unsent):
            self._in_flight.append((site, *site.unsent))

    def finish_upload(self) -> None:
        if self._in_flight:
            flown = self._in_flight.pop(self._draws.randrange(len(self._in_flight)))
            self._deliver(*flown, is_answer_lost=self._draws.random() < 0.3)

    def cut_upload(self) -> None:
        """The connection breaks before the body has arrived."""
        if self._in_flight:
            self._note(*self._in_flight.pop(0), "lost")

    def send_again(self) -> None:
        """Something that was sent before, in whatever round that was."""
        site = self._site()
        if site.sent:
            task, body = self._draws.choice(site.sent)
            if self._is_wanted(site, task, body):
                self._deliver(site, task, body)
            else:
                self._note(site, task, body, "acknowledged")  # its receipt again

    def send_other(self) -> None:
        """Another update for a task that was answered, or in another client's place."""
        site, other = self._site(), self._draws.choice(self._trainers)
        if other.sent:
            task, _ = self._draws.choice(other.sent)
            body = self.world.train(Task(task.round, task.attempt + 7, task.index, task.model))
            if self._is_wanted(site, task, body):
                self._deliver(site, task, body)

    def send_spoilt(self) -> None:
        site = self._site()
        if site.unsent is not None:
            task, body = site.unsent[0], self.world.spoil(site.unsent[1])
            if self._is_wanted(site, task, body):
                self._deliver(site, task, body)

    def give_up(self) -> None:
        site = self._site()
        if site.task is not None:
            self.world.give_up(site.name, site.task)

    def be_killed(self) -> None:
        """A worker that forgets what it was about to send."""
        site = self._site()
        site.task = site.unsent = None

    def leave(self) -> None:
        site = self._site()
        if site.is_enrolled:
            self.world.leave(site.name)
            site.is_enrolled = False

    def beat(self) -> None:
        site = self._site()
        if site.task is not None:
            self.world.beat(site.name, site.task)

    def look_around(self) -> None:
        self.world.look_around(self._site().name, self.history)

    # ---------------------------------------------------------------- operator, clock, coordinators, disk

    def pause(self) -> None:
        self.world.pause()

    def resume(self) -> None:
        self.world.resume()

    def stop(self) -> None:
        if self._draws.random() < 0.1:  # most runs shall come to their end
            self.world.stop()

    def rewind(self) -> None:
        self.world.rewind(self._draws.choice((0, 0, 1, 1, 2)))

    def begin_aggregation(self) -> None:
        self.world.begin_aggregation()

    def finish_aggregation(self) -> None:
        self.world.finish_aggregation(self._draws.randrange(4))

    def pass_time(self) -> None:
        self.world.pass_time(self._draws.choice((1.0, 20.0, 20.0, 70.0, 300.0, 601.0)))

    def set_clock(self) -> None:
        self.world.set_clock(self._draws.choice((-86400.0, -700.0, -3.0, 3.0, 700.0, 86400.0)))

    def be_away(self) -> None:
        for flown in self._in_flight:
            self._note(*flown, "lost")
        self._in_flight.clear()
        self.world.be_away(self._draws.choice((0.0, 0.0, 10.0, 5000.0)))

    def change_coordinator(self) -> None:
        self.world.change_coordinator()

    def collect(self) -> None:
        self.world.collect()

    def harm(self) -> None:
        self.world.harm(self._draws)


_STEPS: Final[dict[Callable[[Schedule], None], float]] = {
    Schedule.ask: 6,
    Schedule.work: 9,
    Schedule.begin_upload: 5,
    Schedule.finish_upload: 5,
    Schedule.cut_upload: 0.5,
    Schedule.send_again: 2,
    Schedule.send_other: 1,
    Schedule.send_spoilt: 1,
    Schedule.give_up: 0.5,
    Schedule.be_killed: 1,
    Schedule.leave: 0.4,
    Schedule.beat: 1,
    Schedule.look_around: 1,
    Schedule.pause: 0.3,
    Schedule.resume: 1.5,
    Schedule.stop: 0.3,
    Schedule.rewind: 0.4,
    Schedule.begin_aggregation: 4,
    Schedule.finish_aggregation: 4,
    Schedule.pass_time: 2,
    Schedule.set_clock: 0.5,
    Schedule.be_away: 1,
    Schedule.change_coordinator: 1,
    Schedule.collect: 0.7,
    Schedule.harm: 0.7,
}
