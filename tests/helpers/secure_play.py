"""A secure run played through the store by the real client halves of the protocol."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from server.database.step.facts import AggregationFacts, EnrolmentFacts, UpdateFacts
from server.lifecycle.events import AggregationFinished, ClientEnrolled, StepAnswered, UpdateReceived
from shared.schemas import Role, SecureStep, SumTotals, Train
from shared.secure.client import Client
from shared.secure.keys import identity_of, make_identity
from shared.secure.messages import Answer, View
from shared.secure.ring import Ring
from tests.helpers.store_play import NOW, RUN, Story, digest, later

NAMES = ("alder", "beech", "cedar")
RING = Ring(64, 10, 8.0)


class SecurePlay(Story):
    """Three sites with keys; everything goes through the store, and each answer is asked for from it."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self.keys = {name: make_identity() for name in NAMES}
        self.clients: dict[str, Client] = {}
        for name in NAMES:
            token = digest("token", name)
            self.store.register(name, token, "0.1.0", NOW, identity=self.identity(name))
        self.create(min_clients=3, secure={})
        for name in NAMES:
            event = ClientEnrolled(name, Role.TRAINER, 0, identity=self.store.identity_of(name))
            self.store.apply(RUN, event, actor=name, now=NOW, facts=EnrolmentFacts())

    def identity(self, name: str) -> str:
        return identity_of(self.keys[name]).hex()

    def asked(self, name: str) -> SecureStep | Train:
        found = self.store.work_for(name)
        assert isinstance(found, SecureStep | Train)
        return found

    def take_step(self, name: str) -> None:
        asked = self.asked(name)
        if isinstance(asked, Train) or asked.step == "upload":
            assert asked.inbox is not None
            self.clients[name] = self.clients[name].mask(asked.inbox, RING.zeros(4))
            facts = UpdateFacts(digest("update", asked.round, name), 50, 0, None, 0.0)
            event = UpdateReceived(name, asked.round, asked.attempt)
            self.store.apply(RUN, event, actor=name, now=later(2), facts=facts)
            return
        answer = StepAnswered(name, asked.round, asked.attempt, self.answer(name, asked))
        self.store.apply(RUN, answer, actor=name, now=later(1))
        assert self.store.apply(RUN, answer, actor=name, now=later(1)).effects == (), "again: nothing"

    def answer(self, name: str, asked: SecureStep) -> Answer:
        if asked.step == "advertise":
            view = View(model=asked.model, broadcast=asked.broadcast, config="c" * 64)
            state = self.store.run_state(RUN).round
            assert state is not None
            assert state.secure is not None
            known = {index: bytes.fromhex(key) for index, key in (asked.identities or {}).items()}
            self.clients[name] = Client.begin(
                state.secure.attempt, view, asked.index, self.keys[name], known, 2 / 3
            )
            return self.clients[name].advertisement
        moved: tuple[Client, Any]
        if asked.roster is not None:
            moved = self.clients[name].share(asked.roster)
        elif asked.survivors is not None:
            moved = self.clients[name].agree(asked.survivors)
        else:
            assert asked.agreements is not None
            moved = self.clients[name].disclose(asked.agreements)
        self.clients[name] = moved[0]
        answer: Answer = moved[1]
        return answer

    def take_all(self, steps: int) -> None:
        for _ in range(steps):
            for name in NAMES:
                self.take_step(name)

    def sum_up(self) -> None:
        self.take_all(5)
        self.end_sum()

    def end_sum(self) -> None:
        """All have answered the last step of round 0."""
        facts = AggregationFacts(model=None, scored=None, broadcast=None, private=None, ledger=())
        totals = SumTotals(clients=3, examples=60, discrepancy=0.75)
        event = AggregationFinished(0, 1, totals=totals)
        self.store.apply(RUN, event, actor="coordinator", now=later(3), facts=facts)
