"""Runs with a past, made through the store as a coordinator makes them: real transitions, real ledger.

Only the numbers that training would have given (losses, accuracies, digests) are made up, by formulas.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from server.database.step.facts import AggregationFacts, DiscrepancyFacts, EnrolmentFacts, UpdateFacts
from server.database.store import Store
from server.lifecycle.events import (
    AggregationFinished,
    AssignmentTaken,
    ClientEnrolled,
    ClientSeen,
    DiscrepancyReceived,
    FailureReported,
    TimePassed,
    UpdateReceived,
)
from server.web.security import hash_token
from shared.config import RunConfig
from shared.schemas import Metrics, Progress, Role, TensorKind, TensorSpec
from shared.weightings import Contribution
from tests.helpers.weighting_rounds import weigh_any

DIGITS = tuple(str(digit) for digit in range(10))
LESIONS = (
    "nevi",
    "melanoma",
    "dermatofibroma",
    "vascular lesions",
    "basal cell carcinoma",
    "benign keratosis-like lesions",
    "actinic keratoses and intraepithelial carcinoma",
    "pigmented_epithelial_carcinoma",
)
"""Diagnoses of HAM10000 as people write them, and one as a folder may be named, without a space."""

EVALUATOR = "test-set"
UPDATE_BYTES = 248_760
FIRST_MOMENT = dt.datetime(2026, 11, 28, 12, 0, 0, tzinfo=dt.UTC)


@dataclass(frozen=True)
class SeedTrainer:
    """A trainer: its size and raw discrepancy, the two numbers that a coordinator knows of it."""

    name: str
    examples: int
    discrepancy: float
    device: str = "cpu"


SITES = (
    SeedTrainer("clinic-c", 412, 0.31, "cuda: NVIDIA H100"),
    SeedTrainer("gothenburg", 120, 1.42),
    SeedTrainer("karolinska", 310, 0.55, "mps"),
    SeedTrainer("leiden", 88, 1.90),
    SeedTrainer("st-thomas", 205, 0.78, "cuda: RTX A4000"),
    SeedTrainer("vall-dhebron", 302, 0.12),
)

MANIFEST = (
    TensorSpec(name="conv.weight", shape=(16, 1, 3, 3), dtype="F32"),
    TensorSpec(name="norm.running_mean", shape=(16,), dtype="F32", kind=TensorKind.BUFFER),
    TensorSpec(name="out.weight", shape=(10, 576), dtype="F32"),
)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def token_of(client: str) -> str:
    """The bearer token of a seeded client, so that tests can speak for it."""
    return f"{client}-token-of-a-test"


def config(name: str, **more: Any) -> RunConfig:
    """Six trainers, Disco weights, ten minutes a round."""
    fields = {
        "name": name,
        "rounds": 20,
        "algorithm": {"name": "fedprox", "parameters": {"mu": 0.01}},
        "min_clients": len(SITES),
        "quorum": 4,
        "round_deadline_seconds": 600,
        "weighting": {"kind": "disco", "a": 0.5, "b": 0.1},
    }
    return RunConfig.model_validate(fields | more)


@dataclass
class Course:
    """One run, driven step by step. ``now`` is its clock; each step lets some time go by."""

    store: Store
    config: RunConfig
    now: dt.datetime = FIRST_MOMENT
    sites: tuple[SeedTrainer, ...] = SITES
    classes: tuple[str, ...] = DIGITS
    completed: int = 0
    attempt: int = 1

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def number(self) -> int:
        """The round that is open."""
        return self.completed + 1

    def pass_time(self, seconds: float) -> dt.datetime:
        self.now += dt.timedelta(seconds=seconds)
        return self.now

    def create(self) -> Course:
        self.store.create_runs(
            self.config,
            classes=self.classes,
            manifest=MANIFEST,
            initial_model=digest(self.name, "initial"),
            initial_bytes=UPDATE_BYTES,
            actor="admin",
            now=self.now,
        )
        return self

    def enrol(self, *, evaluator: bool = True, only: int | None = None) -> Course:
        """Everybody enrols; with as many trainers as ``min_clients`` the run starts by itself."""
        if evaluator:
            self.enrol_one(EVALUATOR, Role.EVALUATOR, 360, "cpu")
        for index, site in enumerate(self.sites[:only]):
            self.enrol_one(site.name, Role.TRAINER, site.examples, site.device, index)
            if (asked := self.config.weighting.discrepancy) is not None:
                facts = DiscrepancyFacts(asked.metric, site.discrepancy)
                self.apply(DiscrepancyReceived(site.name), site.name, facts)
        return self

    def enrol_one(self, name: str, role: Role, examples: int, device: str, index: int | None = None) -> None:
        if name not in {client.client for client in self.store.clients()}:
            self.store.register(name, hash_token(token_of(name)), "0.1.0", self.pass_time(1))
        event = ClientEnrolled(name, role, examples, index)
        self.apply(event, name, EnrolmentFacts(device))
        self.store.mark_seen({name: self.now})

    def apply(self, event: Any, actor: str, facts: Any = None) -> None:
        self.store.apply(self.name, event, actor=actor, now=self.pass_time(0.1), facts=facts)

    # ---------------------------------------------------------------- rounds

    def take(self, *indexes: int) -> None:
        for index in indexes:
            site = self.sites[index]
            self.apply(AssignmentTaken(site.name, self.number, self.attempt), site.name)

    def train(self, index: int, step: int, steps: int = 12) -> None:
        """A heartbeat from the middle of local training."""
        done = Progress(
            attempt=self.attempt, epoch=1, epochs=2, step=step, steps=steps, loss=self.loss(index)
        )
        self.store.progress(self.name, self.number, self.sites[index].name, done, self.pass_time(0.1))

    def deliver(self, *indexes: int) -> None:
        for index in indexes:
            site = self.sites[index]
            facts = UpdateFacts(
                digest=digest(self.name, self.number, self.attempt, index),
                bytes=UPDATE_BYTES,
                steps=2 * max(site.examples // 64, 1),
                loss=self.loss(index),
                seconds=0.8 + site.examples / 300,
            )
            self.apply(UpdateReceived(site.name, self.number, self.attempt), site.name, facts)

    def fail(self, index: int, reason: str) -> None:
        site = self.sites[index]
        self.apply(FailureReported(site.name, self.number, self.attempt, reason), site.name)

    def deadline(self) -> None:
        """Time goes by until the round's deadline is over; below quorum it is drawn anew."""
        self.pass_time(self.config.round_deadline_seconds + 1)
        self.apply(TimePassed(), "coordinator")

    def draw_again(self) -> None:
        self.attempt += 1

    def aggregate(self, arrived: Collection[int]) -> None:
        """What the coordinator does once the round is closed, with the ledger that it computes."""
        everyone = [Contribution(i, s.examples, s.discrepancy) for i, s in enumerate(self.sites)]
        weighed = weigh_any(self.config.weighting, [everyone[i] for i in arrived], everyone, self.number)
        model = digest(self.name, "model", self.number, self.attempt)
        facts = AggregationFacts(
            model,
            model,
            None,
            None,
            tuple(weighed.rows),
            {model: UPDATE_BYTES},
            memory=weighed.memory,
            adjustment=weighed.adjustment,
        )
        self.apply(AggregationFinished(self.number, self.attempt), "coordinator", facts)
        self.completed, self.attempt = self.number, 1

    def loss(self, index: int) -> float:
        return 0.15 + 0.01 * index + 2.1 * math.exp(-self.number / 5)

    def play(self, failing: int | None = None) -> None:
        """A whole round, in which one client may fail."""
        invited = self.invited()
        arrived = [index for index in invited if index != failing]
        self.take(*invited)
        if failing is not None:
            self.fail(failing, "CUDA out of memory with batch size 64")
        self.pass_time(2.5)
        self.deliver(*arrived)
        self.aggregate(arrived)

    def invited(self) -> list[int]:
        current = self.store.run_state(self.name).round
        return [participant.index for participant in current.participants] if current else []

    def come_back(self, *indexes: int) -> None:
        """Clients that missed a deadline ask for work again; with a quorum of them the round is drawn."""
        for index in indexes:
            self.apply(ClientSeen(self.sites[index].name), self.sites[index].name)

    def evaluate(self, round: int | None = None) -> None:
        """The evaluator scores a round's model, the newest unless one is named."""
        number = self.completed if round is None else round
        level = 0.1 + 0.82 * (1 - math.exp(-number / 4))
        categories = {
            name: whole_examples(
                min(1.0, max(0.0, level + 0.09 * math.sin(3 * place + 1))) if number else place == 4
            )
            for place, name in enumerate(self.classes)
        }
        metrics = Metrics(
            loss=0.2 + 2.1 * math.exp(-number / 5),
            accuracy=whole_examples(level),
            examples=360,
            per_category=categories,
        )
        self.store.add_evaluation(self.name, number, EVALUATOR, metrics, EVALUATOR, self.pass_time(0.5))


def whole_examples(value: float) -> float:
    """To whole examples of 360, as a real accuracy is."""
    return round(value * 360) / 360


def finished_run(store: Store, name: str = "skin-lesions-2026", **more: Any) -> Course:
    course = Course(store, config(name, **more), classes=LESIONS).create().enrol()
    course.evaluate(0)
    while course.completed < course.config.rounds:
        course.play(failing=5 if course.completed == 8 else None)
        course.evaluate()
    return course


def running_run(
    store: Store, name: str = "digits-niid1", rounds_done: int = 12, started: dt.datetime = FIRST_MOMENT
) -> Course:
    """Some rounds done, the seventh at its second attempt; the newest is open, its clients in all states."""
    course = Course(store, config(name), now=started).create().enrol()
    course.evaluate(0)
    while course.completed < rounds_done:
        if course.number == 7 and course.attempt == 1:
            course.take(*range(6))
            course.deliver(0, 2)
            course.fail(1, "the data folder has gone away")
            course.deadline()
            course.draw_again()
            course.come_back(3, 4, 5)
        course.play()
        course.evaluate()
    course.take(0, 1, 2, 4, 5)
    course.deliver(0, 4)
    course.train(1, step=8)
    course.train(2, step=5)
    course.fail(5, "CUDA out of memory with batch size 64")
    return course


def long_names_run(store: Store) -> Course:
    """Run and clients have names of 63 characters, the most there may be; one client fails."""
    name = lengthen("melanoma-against-nevus")
    sites = tuple(replace(site, name=lengthen(site.name)) for site in SITES)
    course = Course(store, config(name, rounds=2), sites=sites, classes=LESIONS).create().enrol()
    course.evaluate(0)
    course.play(failing=5)
    course.evaluate()
    course.take(0, 1)
    course.train(1, step=5)
    return course


def lengthen(name: str) -> str:
    """To 63 characters, without a place to break the line."""
    return f"{name}_{'universitaetskrankenhaus_dermatologie_pathologie_' * 2}"[:63]


def waiting_run(store: Store, name: str = "waiting-for-sites", started: dt.datetime = FIRST_MOMENT) -> Course:
    """Its second round found nobody, two sites are back, four have to be."""
    course = Course(store, config(name), now=started).create().enrol()
    course.play()
    course.evaluate()
    course.take(0, 1)
    course.train(1, step=5)
    course.deadline()
    course.come_back(0, 1)
    return course


def enrolling_run(store: Store, name: str = "waiting-for-three") -> Course:
    return Course(store, config(name)).create().enrol(only=3)
