"""A secure run of the state machine, answered by the real client halves of the protocol."""

from __future__ import annotations

from collections.abc import Collection

from server.lifecycle.events import (
    AggregationFinished,
    ClientEnrolled,
    Event,
    StepAnswered,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Round
from shared.config import SecureSums
from shared.schemas import Role, SumTotals
from shared.secure.client import Client
from shared.secure.coordinator import Coordinator, Phase
from shared.secure.keys import identity_of, make_identity
from shared.secure.messages import Answer, View
from shared.secure.ring import Ring
from tests.helpers.lifecycle_story import NOW, new_run

VIEW = View(model="a" * 64, broadcast=None, config="c" * 64)
RING = Ring(64, 10, 8.0)
NAMES = "abcde"


class SecureStory:
    """A run with a trainer for each letter; ``run`` is where it stands, ``clients`` their secret halves."""

    def __init__(self, names: str = NAMES, **policy: object) -> None:
        self.keys = {name: make_identity() for name in names}
        self.clients: dict[str, Client] = {}
        secure = SecureSums(step_deadline_seconds=60)
        self.run = new_run(secure=secure, min_clients=len(names), **policy)
        for name in names:
            self.do(self.enrolment(name))

    def enrolment(self, name: str) -> ClientEnrolled:
        identity = identity_of(self.keys[name]).hex()
        return ClientEnrolled(name, Role.TRAINER, 0, identity=identity)

    def do(self, *events: Event) -> Decision:
        decision = Decision(self.run, ())
        for event in events:
            decision = decide(self.run, event, NOW)
            self.run = decision.run
        return decision

    @property
    def round(self) -> Round:
        assert self.run.round is not None
        return self.run.round

    @property
    def secure(self) -> Coordinator:
        assert self.round.secure is not None
        return self.round.secure

    def answer(self, name: str) -> Answer:
        """What the client answers to the step that is open."""
        secure, index = self.secure, NAMES.index(name)
        match secure.phase:
            case Phase.ADVERTISE:
                client = Client.begin(
                    secure.attempt, VIEW, index, self.keys[name], secure.identities, secure.threshold_share
                )
                self.clients[name] = client
                return client.advertisement
            case Phase.SHARE:
                self.clients[name], shares = self.clients[name].share(secure.roster)
                return shares
            case Phase.AGREE:
                self.clients[name], agreement = self.clients[name].agree(secure.survivors)
                return agreement
            case _:
                self.clients[name], disclosure = self.clients[name].disclose(secure.signed)
                return disclosure

    def send(self, name: str) -> Decision:
        """The client takes the step that is open."""
        number, attempt = self.round.number, self.round.attempt
        if self.secure.phase is Phase.UPLOAD:
            client = self.clients[name]
            self.clients[name] = client.mask(self.secure.inbox_of(client.index), RING.zeros(4))
            return self.do(UpdateReceived(name, number, attempt))
        return self.do(StepAnswered(name, number, attempt, self.answer(name)))

    def step(self, names: Collection[str], *, late: bool = False) -> None:
        """These take the step; the others miss its deadline, if anybody is late."""
        for name in names:
            self.send(name)
        if late:
            self.run = decide(self.run, TimePassed(), self.round.deadline_at).run

    def to(self, phase: Phase, names: Collection[str] = NAMES) -> None:
        """All of ``names`` take steps until this one is open."""
        while self.secure.phase is not phase:
            self.step(names)

    def sum_up(self) -> None:
        """Round 0, by everybody."""
        self.to(Phase.UNMASK)
        self.step(NAMES)
        totals = SumTotals(clients=len(NAMES), examples=100, discrepancy=1.5)
        self.do(AggregationFinished(0, self.round.attempt, totals=totals))
