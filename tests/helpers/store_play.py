"""A store with a run in it, driven through the store's own methods."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from server.database.step.facts import (
    AggregationFacts,
    DiscrepancyFacts,
    EnrolmentFacts,
    UpdateFacts,
)
from server.database.store import Store
from server.lifecycle.events import (
    AggregationFinished,
    AssignmentTaken,
    ClientEnrolled,
    DiscrepancyReceived,
    UpdateReceived,
)
from server.lifecycle.machine import Decision
from shared.config import RunConfig
from shared.schemas import Role, TensorSpec
from shared.weightings import LedgerEntry

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
RUN = "hospitals"
INITIAL = "0" * 64
MANIFEST = (TensorSpec(name="layer.weight", shape=(2, 3), dtype="F32"),)


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def digest(*parts: object) -> str:
    """A made-up digest that tells where it came from when a test fails: r1c0 becomes 0000...r1c0 in hex."""
    return "-".join(map(str, parts)).encode().hex().rjust(64, "0")


class Story:
    """A store, the names in it, and the shortest way to say what happens next."""

    def __init__(self, engine: sa.Engine) -> None:
        self.store = Store(engine)

    def register(self, *names: str) -> None:
        for name in names:
            self.store.register(name, digest("token", name), "0.1.0", NOW)

    def create(self, run: str = RUN, **settings: Any) -> None:
        config = RunConfig(
            **{"name": run, "rounds": 2, "min_clients": 2, "round_deadline_seconds": 60, **settings}
        )
        self.store.create_runs(
            config,
            classes=("cat", "dog"),
            manifest=MANIFEST,
            initial_model=INITIAL,
            initial_bytes=100,
            actor="admin",
            now=NOW,
        )

    def enrol(
        self, client: str, *, examples: int = 10, role: Role = Role.TRAINER, run: str = RUN, **more: Any
    ) -> Decision:
        event = ClientEnrolled(client, role, examples, **more)
        return self.store.apply(run, event, actor=client, now=NOW, facts=EnrolmentFacts("cuda:0"))

    def submit(self, client: str, value: float = 0.25, run: str = RUN) -> Decision:
        facts = DiscrepancyFacts("kl", value)
        return self.store.apply(run, DiscrepancyReceived(client), actor=client, now=NOW, facts=facts)

    def begin(self, *clients: str, **settings: Any) -> None:
        """Clients registered, the run created, all enrolled with sizes 10, 20 ...; it starts by itself."""
        self.register(*clients)
        self.create(min_clients=len(clients), **settings)
        for place, client in enumerate(clients, 1):
            self.enrol(client, examples=10 * place)
            if settings.get("weighting", {"kind": "disco"})["kind"] == "disco":
                self.submit(client, place / 4)

    def take(self, client: str, number: int = 1, attempt: int = 1) -> Decision:
        return self.store.apply(RUN, AssignmentTaken(client, number, attempt), actor=client, now=later(1))

    def upload(self, client: str, number: int = 1, attempt: int = 1, **numbers: Any) -> Decision:
        facts = UpdateFacts(
            **{
                "digest": digest("update", number, client),
                "bytes": 50,
                "steps": 7,
                "loss": 0.5,
                "seconds": 1.5,
                **numbers,
            }
        )
        event = UpdateReceived(client, number, attempt)
        return self.store.apply(RUN, event, actor=client, now=later(2), facts=facts)

    def aggregate(self, number: int = 1, attempt: int = 1, **event: Any) -> Decision:
        found = self.store.aggregation_input(RUN, number, attempt)
        made = None if event.get("weightless") else digest("model", number)
        facts = AggregationFacts(
            model=made,
            scored=made,
            broadcast=digest("broadcast", number) if made else None,
            private=digest("private", number) if made else None,
            ledger=ledger([update.index for update in found.updates]),
            blobs={made: 60} if made else {},
        )
        happened = AggregationFinished(number, attempt, **event)
        return self.store.apply(RUN, happened, actor="coordinator", now=later(3), facts=facts)

    def play(self, number: int, clients: Sequence[str]) -> None:
        """The whole round."""
        for client in clients:
            self.take(client, number)
            self.upload(client, number)
        self.aggregate(number)

    def kinds(self, run: str | None = RUN) -> list[str]:
        return [event.kind for event in self.store.events(run=run)]


def ledger(indexes: Sequence[int]) -> tuple[LedgerEntry, ...]:
    share = 1 / len(indexes)
    return tuple(
        LedgerEntry(
            index=index,
            examples=10,
            included=True,
            reason="score below zero" if index == 1 else None,
            size_share=share,
            discrepancy=0.25,
            discrepancy_share=share,
            score=0.5,
            weight=share,
            size_weight=share,
        )
        for index in indexes
    )
