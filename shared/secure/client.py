"""A client of a secure sum: pure functions from (state, message) to (state, answer).

The caller writes the new state to its journal before it sends the answer; asked the same again after a kill,
the client gives the same answer. Asked anything else a second time, it refuses: every phase is passed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from shared.secure.encoding import encode
from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.keys import (
    agree_on_secret,
    agreement_key_of,
    derive_key,
    has_signed,
    identity_of,
    make_agreement_key,
    open_sealed,
    seal,
    sign,
)
from shared.secure.masks import Mask, apply_masks
from shared.secure.messages import (
    Advertisement,
    Agreement,
    Agreements,
    Attempt,
    Disclosure,
    Inbox,
    Message,
    Roster,
    Shares,
    Survivors,
    View,
    survivors_text,
)
from shared.secure.ring import SMALLEST_SUM, RingVector
from shared.secure.sharing import SHARE_BYTES, split

__all__ = ["Client", "Phase", "mask_key_between", "seed_digest_of", "seed_mask_key"]


class Phase(StrEnum):
    """The last step that the client has passed."""

    ADVERTISED = "advertised"
    SHARED = "shared"
    UPLOADED = "uploaded"
    AGREED = "agreed"
    DISCLOSED = "disclosed"


class Held(Message):
    """A holder's shares of somebody's seed and mask key."""

    seed: bytes = Field(repr=False)
    mask_key: bytes = Field(repr=False)


class Client(Message):
    """All that a client keeps of one attempt; secret, and of no use after it.

    ``identities`` are the public identity keys that the client knows the members by, ``smallest`` the fewest
    members in a sum that it takes part in.
    """

    index: int
    attempt: Attempt
    view: View
    threshold_share: float = Field(gt=0.5, le=1)
    smallest: int = Field(SMALLEST_SUM, ge=SMALLEST_SUM)
    identities: dict[int, bytes]
    identity_key: bytes = Field(repr=False)
    sealing_key: bytes = Field(repr=False)
    mask_key: bytes = Field(repr=False)
    seed: bytes = Field(repr=False)
    phase: Phase = Phase.ADVERTISED
    roster: Roster | None = None
    shares: Shares | None = None
    held: dict[int, Held] = Field(default_factory=dict, repr=False)
    vector_digest: str | None = None
    survivors: tuple[int, ...] | None = None

    # ------------------------------------------------------------ 1 advertise

    @classmethod
    def begin(
        cls,
        attempt: Attempt,
        view: View,
        index: int,
        identity_key: bytes,
        identities: Mapping[int, bytes],
        threshold_share: float,
        smallest: int = SMALLEST_SUM,
    ) -> Client:
        """A client with fresh keys. Raises ProtocolRefused if it is known under another identity."""
        if identities.get(index) != identity_of(identity_key):
            raise ProtocolRefused("the coordinator knows this client under another identity key")
        return cls(
            index=index,
            attempt=attempt,
            view=view,
            threshold_share=threshold_share,
            smallest=smallest,
            identities=dict(identities),
            identity_key=identity_key,
            sealing_key=make_agreement_key(),
            mask_key=make_agreement_key(),
            seed=make_agreement_key(),
        )

    @property
    def advertisement(self) -> Advertisement:
        """The first message."""
        unsigned = Advertisement(
            index=self.index,
            attempt=self.attempt,
            view=self.view,
            sealing_key=agreement_key_of(self.sealing_key),
            mask_key=agreement_key_of(self.mask_key),
        )
        return unsigned.model_copy(update={"signature": sign(self.identity_key, unsigned.signed_text)})

    # ------------------------------------------------------------ 2 share

    def share(self, roster: Roster) -> tuple[Client, Shares]:
        """Check everybody's advertisement, and split the own keys among the holders.

        Raises:
            ProtocolRefused: a signature, key, attempt or digest is not what it has to be.
            AttemptAbandoned: there are too few members.
        """
        if self.roster is not None and self.shares is not None:
            if roster != self.roster:
                raise ProtocolRefused("the coordinator names other members or keys than before")
            return self, self.shares
        self._check_roster(roster)
        graph = roster.graph(self.threshold_share)
        holders = graph.holders(self.index)
        seeds = split(self.seed, graph.threshold, holders)
        mask_keys = split(self.mask_key, graph.threshold, holders)
        sealed = {
            holder: seal(
                self._sealing_key_with(roster, holder, sender=self.index),
                seeds[holder] + mask_keys[holder],
                self._associated(roster, self.index, holder),
            )
            for holder in holders
            if holder != self.index
        }
        shares = Shares(index=self.index, seed_digest=seed_digest_of(self.seed), sealed=sealed)
        own = {self.index: Held(seed=seeds[self.index], mask_key=mask_keys[self.index])}
        return self._moved(phase=Phase.SHARED, roster=roster, shares=shares, held=own), shares

    def _check_roster(self, roster: Roster) -> None:
        members = roster.members
        if list(members) != sorted(set(members)):
            raise ProtocolRefused("the coordinator's list of members is not in order, or names one twice")
        if len(members) < max(self.smallest, roster.threshold(self.threshold_share)):
            raise AttemptAbandoned(
                f"{len(members)} clients take part; this client adds its numbers to {self.smallest} or more"
            )
        if self.index not in members or roster.of(self.index) != self.advertisement:
            raise ProtocolRefused("the coordinator passes on other keys for this client than it sent")
        for other in roster.advertisements:
            self._check_member(other)
        keys = [key for other in roster.advertisements for key in (other.sealing_key, other.mask_key)]
        if len(set(keys)) < len(keys):
            raise ProtocolRefused("two members show the same key")

    def _check_member(self, other: Advertisement) -> None:
        identity = self.identities.get(other.index)
        if identity is None or not has_signed(identity, other.signature, other.signed_text):
            raise ProtocolRefused(f"the keys of client {other.index} are not signed by its identity")
        if other.attempt != self.attempt:
            raise ProtocolRefused(f"the keys of client {other.index} are of another attempt: {other.attempt}")
        for what in ("model", "broadcast", "config"):
            if getattr(other.view, what) != getattr(self.view, what):
                raise ProtocolRefused(
                    f"client {other.index} was given another {what} than this client: "
                    "the coordinator may be reading single clients by it"
                )

    # ------------------------------------------------------------ 3 upload

    def mask(self, inbox: Inbox, vector: RingVector) -> Client:
        """Hide ``vector``, in place: the result is the upload.

        Asked again after a kill, the same vector becomes the same upload; two vectors never get the same
        masks.

        Raises:
            ProtocolRefused: a sealed share was changed, or the vector is another one than before.
            AttemptAbandoned: too few of this client's holders are left.
        """
        roster = self._known_roster()
        digest = hashlib.sha256(vector.tobytes()).hexdigest()
        if self.vector_digest is None:
            held = self._open(roster, inbox)
            moved = self._moved(phase=Phase.UPLOADED, held=held, vector_digest=digest)
        else:
            moved = self
            if digest != self.vector_digest or set(inbox.sealed) != set(self.held) - {self.index}:
                raise ProtocolRefused("these masks hide another vector, or another set of members, already")
        apply_masks(vector, moved._masks(roster))
        return moved

    def _open(self, roster: Roster, inbox: Inbox) -> dict[int, Held]:
        graph = roster.graph(self.threshold_share)
        strangers = set(inbox.sealed) - set(graph.neighbours(self.index))
        if strangers:
            raise ProtocolRefused(f"clients {sorted(strangers)} have no shares to give to this client")
        if len(inbox.sealed) + 1 < graph.threshold:
            raise AttemptAbandoned(
                f"{len(inbox.sealed) + 1} of this client's key holders are left, {graph.threshold} are needed"
            )
        held = dict(self.held)
        for sender, sealed in sorted(inbox.sealed.items()):
            key = self._sealing_key_with(roster, sender, sender=sender)
            opened = open_sealed(key, sealed, self._associated(roster, sender, self.index))
            if len(opened) != 2 * SHARE_BYTES:
                raise ProtocolRefused(f"the shares of client {sender} have a wrong length")
            held[sender] = Held(seed=opened[:SHARE_BYTES], mask_key=opened[SHARE_BYTES:])
        return held

    def _masks(self, roster: Roster) -> list[Mask]:
        masks = [Mask(seed_mask_key(self.seed, self.attempt, self.index), 1)]
        for other in sorted(set(self.held) - {self.index}):
            key = mask_key_between(self.mask_key, roster, self.attempt, self.index, other)
            masks.append(Mask(key, 1 if other > self.index else -1))
        return masks

    # ------------------------------------------------------------ 4 agree

    def agree(self, survivors: Survivors) -> tuple[Client, Agreement]:
        """Sign the set of survivors, one set only.

        Raises:
            ProtocolRefused: the client uploaded nothing, is not named, or was named another set before.
            AttemptAbandoned: too few are left.
        """
        roster, members = self._known_roster(), survivors.members
        if self.vector_digest is None:
            raise ProtocolRefused("this client is asked to agree before it has uploaded anything")
        if self.survivors is not None and self.survivors != members:
            raise ProtocolRefused("the coordinator names another set of survivors than before")
        self._check_survivors(roster, members)
        text = survivors_text(self.attempt, roster.digest, members)
        agreement = Agreement(index=self.index, signature=sign(self.identity_key, text))
        if self.survivors is not None:
            return self, agreement
        return self._moved(phase=Phase.AGREED, survivors=members), agreement

    def _check_survivors(self, roster: Roster, members: tuple[int, ...]) -> None:
        if list(members) != sorted(set(members)) or not set(members) <= set(roster.members):
            raise ProtocolRefused("the survivors are not in order, or not all members")
        if self.index not in members:
            raise ProtocolRefused("this client's upload is left out of the sum that it is asked to unmask")
        known = {self.index, *self.held}
        if set(members) & set(roster.graph(self.threshold_share).neighbours(self.index)) - known:
            raise ProtocolRefused("a survivor is named that has shared no keys with this client")
        needed = max(self.smallest, roster.threshold(self.threshold_share))
        if len(members) < needed:
            raise AttemptAbandoned(
                f"{len(members)} clients are left, {needed} are needed to unmask their sum"
            )

    # ------------------------------------------------------------ 5 unmask

    def disclose(self, agreements: Agreements) -> tuple[Client, Disclosure]:
        """The shares that unmask the sum: of a survivor its seed's, of a drop-out its mask key's, never both.

        Two sets of survivors cannot both have t of n signatures while fewer than 2t - n members sign two:
        so many colluders could have one half of the others give a member's seed, and the other its mask key.

        Raises:
            ProtocolRefused: fewer members than the threshold have signed the set that this client signed.
        """
        roster, survivors = self._known_roster(), self.survivors
        if survivors is None:
            raise ProtocolRefused("this client is asked for shares before it has agreed who is left")
        text = survivors_text(self.attempt, roster.digest, survivors)
        valid = [
            index
            for index, signature in agreements.signatures.items()
            if index in survivors and has_signed(self.identities[index], signature, text)
        ]
        needed = max(self.smallest, roster.threshold(self.threshold_share))
        if len(valid) < needed:
            raise ProtocolRefused(
                f"{len(valid)} clients have signed the set of survivors that this client was shown, "
                f"{needed} are needed: the coordinator may be showing different sets"
            )
        disclosure = Disclosure(
            index=self.index,
            seeds={index: held.seed for index, held in self.held.items() if index in survivors},
            mask_keys={index: held.mask_key for index, held in self.held.items() if index not in survivors},
        )
        return self._moved(phase=Phase.DISCLOSED), disclosure

    # ------------------------------------------------------------ helpers

    def _moved(self, **changes: object) -> Client:
        return self.model_copy(update=changes)

    def _known_roster(self) -> Roster:
        if self.roster is None:
            raise ProtocolRefused(
                "the coordinator has not shown this client who takes part, or another worker with a copy of "
                "this state folder has answered in its place"
            )
        return self.roster

    def _sealing_key_with(self, roster: Roster, other: int, *, sender: int) -> bytes:
        secret = agree_on_secret(self.sealing_key, roster.of(other).sealing_key)
        receiver = self.index if sender == other else other
        return derive_key(secret, "shares", self._associated(roster, sender, receiver))

    def _associated(self, roster: Roster, sender: int, receiver: int) -> bytes:
        return encode("shares", self.attempt.model_dump(mode="json"), roster.digest, sender, receiver)


def seed_mask_key(seed: bytes, attempt: Attempt, index: int) -> bytes:
    """The key of a client's own mask."""
    return derive_key(seed, "own mask", attempt.model_dump(mode="json"), index)


def mask_key_between(private: bytes, roster: Roster, attempt: Attempt, own: int, other: int) -> bytes:
    """The key of the mask that two clients share, from the one's private mask key."""
    secret = agree_on_secret(private, roster.of(other).mask_key)
    pair = sorted((own, other))
    return derive_key(secret, "shared mask", attempt.model_dump(mode="json"), roster.digest, pair)


def seed_digest_of(seed: bytes) -> bytes:
    """By which the coordinator knows that a rebuilt seed is the right one; tells nothing of the seed."""
    return hashlib.sha256(encode("seed", seed)).digest()
