"""A secure sum played by real parties that are killed after every step: only what is JSON goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from shared.secure.client import Client
from shared.secure.coordinator import Coordinator
from shared.secure.keys import identity_of, make_identity
from shared.secure.messages import Agreements, Attempt, Inbox, Message, Roster, Survivors, View
from shared.secure.ring import Ring, RingVector

ATTEMPT = Attempt(run="skin", round=3, attempt=1)
VIEW = View(model="a" * 64, broadcast=None, config="c" * 64)
STEPS = ("advertise", "share", "upload", "agree", "disclose")


M = TypeVar("M", bound=Message)


def restarted(message: M) -> M:
    """What is left of a message, or of a party, that was written to disk or sent."""
    return type(message).model_validate_json(message.model_dump_json())


@dataclass
class Party:
    """All parties of one attempt; ``vectors`` are what the clients hide, by index."""

    vectors: Mapping[int, RingVector]
    ring: Ring
    share: float = 2 / 3
    smallest: int = 3
    attempt: Attempt = ATTEMPT
    views: Mapping[int, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = {index: make_identity() for index in self.vectors}
        self.identities = {index: identity_of(key) for index, key in self.keys.items()}
        self.coordinator = Coordinator(
            attempt=self.attempt,
            threshold_share=self.share,
            smallest=self.smallest,
            identities=self.identities,
        )
        self.clients = {index: self.begin(index) for index in self.vectors}
        self.uploads: dict[int, RingVector] = {}

    def begin(self, index: int) -> Client:
        return Client.begin(
            self.attempt,
            self.views.get(index, VIEW),
            index,
            self.keys[index],
            self.identities,
            self.share,
            self.smallest,
        )

    def restart(self) -> None:
        """Everybody is killed and goes on from its journal."""
        self.coordinator = restarted(self.coordinator)
        self.clients = {index: restarted(client) for index, client in self.clients.items()}

    # each returns what the coordinator says at the step's end; ``present`` answer

    def advertise(self, present: Collection[int]) -> Roster:
        for index in sorted(present):
            self.coordinator = self.coordinator.advertised(restarted(self.clients[index].advertisement))
        self.coordinator, roster = self.coordinator.close_advertising()
        return restarted(roster)

    def share_keys(self, roster: Roster, present: Collection[int]) -> dict[int, Inbox]:
        for index in sorted(present):
            self.clients[index], shares = self.clients[index].share(roster)
            self.coordinator = self.coordinator.shared(restarted(shares))
        self.coordinator, inboxes = self.coordinator.close_sharing()
        return {index: restarted(inbox) for index, inbox in inboxes.items()}

    def upload(self, inboxes: Mapping[int, Inbox], present: Collection[int]) -> Survivors:
        for index in sorted(present):
            masked = self.vectors[index].copy()
            self.clients[index] = self.clients[index].mask(inboxes[index], masked)
            self.uploads[index] = masked
            self.coordinator = self.coordinator.received_upload(index)
        self.coordinator, survivors = self.coordinator.close_uploading()
        return restarted(survivors)

    def agree(self, survivors: Survivors, present: Collection[int]) -> Agreements:
        for index in sorted(present):
            self.clients[index], agreement = self.clients[index].agree(survivors)
            self.coordinator = self.coordinator.agreed(restarted(agreement))
        self.coordinator, agreements = self.coordinator.close_agreeing()
        return restarted(agreements)

    def disclose(self, agreements: Agreements, present: Collection[int]) -> RingVector:
        for index in sorted(present):
            self.clients[index], disclosure = self.clients[index].disclose(agreements)
            self.coordinator = self.coordinator.disclosed(restarted(disclosure))
        total = self.plain_sum(self.uploads)
        self.coordinator.unmask(total)
        return total

    def plain_sum(self, vectors: Mapping[int, RingVector]) -> RingVector:
        total = self.ring.zeros(len(next(iter(self.vectors.values()))))
        for vector in vectors.values():
            total += vector
        return total

    def play(
        self, lost: Mapping[int, str] | None = None, between: Callable[[], None] | None = None
    ) -> RingVector:
        """The unmasked sum when client k is gone from step ``lost[k]`` on."""
        gone = lost or {}
        pause = between or (lambda: None)

        def present(step: str) -> list[int]:
            return [k for k in self.vectors if k not in gone or STEPS.index(gone[k]) > STEPS.index(step)]

        pause()
        roster = self.advertise(present("advertise"))
        pause()
        inboxes = self.share_keys(roster, present("share"))
        pause()
        survivors = self.upload(inboxes, present("upload"))
        pause()
        agreements = self.agree(survivors, present("agree"))
        pause()
        return self.disclose(agreements, present("disclose"))


def random_vectors(ring: Ring, clients: int, length: int, seed: int) -> dict[int, RingVector]:
    """Encoded numbers, by client index (which need not begin at 0, or follow each other)."""
    draw = np.random.default_rng(seed)
    vectors = {}
    for at in range(clients):
        vector = ring.zeros(length)
        ring.encode(draw.normal(size=length) * ring.limit / 2, vector)
        vectors[3 * at + 1] = vector
    return vectors
