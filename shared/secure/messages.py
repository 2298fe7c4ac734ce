"""What the parties of a secure sum send each other; every message is JSON, with bytes in base64.

The phases are advertise, share, upload, agree, unmask. The upload itself is no message here: it is a vector
of the ring, in a file like any update.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field

from shared.frozen import Frozen
from shared.secure.encoding import encode
from shared.secure.graph import Graph, draw_graph
from shared.secure.ring import SMALLEST_SUM

__all__ = [
    "Advertisement",
    "Agreement",
    "Agreements",
    "Answer",
    "Attempt",
    "Disclosure",
    "Inbox",
    "Message",
    "Roster",
    "Shares",
    "Survivors",
    "View",
    "survivors_text",
]

Key = Annotated[bytes, Field(min_length=32, max_length=32)]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Index = Annotated[int, Field(ge=0)]


class Message(Frozen):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        hide_input_in_errors=True,
    )


class Attempt(Message):
    """Which sum this is; keys, masks and signatures of one are of no use in another."""

    run: str
    round: int = Field(ge=0)
    attempt: int = Field(ge=0)


class View(Message):
    """SHA-256 of what a client was given: model, what is sent beside it (None: nothing), configuration."""

    model: Digest
    broadcast: Digest | None
    config: Digest


class Advertisement(Message):
    """1, client to coordinator: its two public keys and what it was given, signed by its identity."""

    index: Index
    attempt: Attempt
    view: View
    sealing_key: Key
    mask_key: Key
    signature: Signature = bytes(64)

    @property
    def signed_text(self) -> bytes:
        return encode("advertise", self.model_dump(mode="json", exclude={"signature"}))


class Roster(Message):
    """1, coordinator to all: everybody's advertisement, by index."""

    advertisements: tuple[Advertisement, ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(advertisement.index for advertisement in self.advertisements)

    @functools.cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(encode("roster", self.model_dump(mode="json"))).digest()

    def threshold(self, share: float) -> int:
        """How many of the members must be there to the end.

        >>> Roster(advertisements=()).threshold(2 / 3)
        3
        """
        return max(SMALLEST_SUM, math.ceil(share * len(self.advertisements) - 1e-9))

    def graph(self, share: float) -> Graph:
        """Who masks with whom; every client finds the same."""
        return draw_graph(self.members, self.threshold(share), self.digest)

    def of(self, index: int) -> Advertisement:
        return next(found for found in self.advertisements if found.index == index)


class Shares(Message):
    """2, client to coordinator: for each holder its shares of the sender's two keys, sealed for it."""

    index: Index
    seed_digest: Key
    sealed: dict[Index, bytes]


class Inbox(Message):
    """2, coordinator to a client: what the others sealed for it, by sender."""

    sealed: dict[Index, bytes]


class Survivors(Message):
    """4, coordinator to all: whose uploads arrived, ascending."""

    members: tuple[Index, ...]


class Agreement(Message):
    """4, client to coordinator: its signature under the survivors it was told."""

    index: Index
    signature: Signature


class Agreements(Message):
    """4, coordinator to all survivors: everybody's signature."""

    signatures: dict[Index, Signature]


class Disclosure(Message):
    """5, client to coordinator: a share of each survivor's seed, and of each drop-out's mask key."""

    index: Index
    seeds: dict[Index, Key]
    mask_keys: dict[Index, Key]


Answer = Advertisement | Shares | Agreement | Disclosure
"""What a client answers to a step, but for its upload."""


def survivors_text(attempt: Attempt, roster: bytes, members: Iterable[int]) -> bytes:
    """What is signed in the fourth phase; of no use for another roster or attempt."""
    return encode("survivors", attempt.model_dump(mode="json"), roster, list(members))
