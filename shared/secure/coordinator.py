"""The coordinator of a secure sum: pure functions from (state, message) to (state, message).

It passes on what clients send, adds up what they upload, and unmasks the sum. The uploads are not part of
its state: the caller keeps them, adds them up in the ring, and hands the total to ``unmask``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from shared.secure.client import mask_key_between, seed_digest_of, seed_mask_key
from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.graph import Graph
from shared.secure.keys import agreement_key_of, has_signed
from shared.secure.masks import Mask, apply_masks
from shared.secure.messages import (
    Advertisement,
    Agreement,
    Agreements,
    Answer,
    Attempt,
    Disclosure,
    Inbox,
    Message,
    Roster,
    Shares,
    Survivors,
    survivors_text,
)
from shared.secure.ring import SMALLEST_SUM, RingVector
from shared.secure.sharing import combine

__all__ = ["Coordinator", "Phase"]


class Phase(StrEnum):
    """What is waited for."""

    ADVERTISE = "advertise"
    SHARE = "share"
    UPLOAD = "upload"
    AGREE = "agree"
    UNMASK = "unmask"


class Coordinator(Message):
    """One attempt; ``identities`` are the registered public identity keys of the clients drawn.

    ``gone`` are clients that nobody waits for any more: they said so, or missed a step's deadline.
    Nothing in it tells a client's numbers: of a survivor it never holds the mask key, of a drop-out never
    the seed.
    """

    attempt: Attempt
    threshold_share: float = Field(gt=0.5, le=1)
    smallest: int = Field(SMALLEST_SUM, ge=SMALLEST_SUM)
    identities: dict[int, bytes]
    phase: Phase = Phase.ADVERTISE
    advertisements: dict[int, Advertisement] = Field(default_factory=dict)
    shares: dict[int, Shares] = Field(default_factory=dict)
    uploaded: tuple[int, ...] = ()
    agreements: dict[int, Agreement] = Field(default_factory=dict)
    disclosures: dict[int, Disclosure] = Field(default_factory=dict)
    gone: tuple[int, ...] = ()

    # ------------------------------------------------------------ what comes in

    def take(self, message: Answer) -> Coordinator:
        """An answer to the step that is open. Raises ProtocolRefused for any other."""
        match message:
            case Advertisement():
                return self.advertised(message)
            case Shares():
                return self.shared(message)
            case Agreement():
                return self.agreed(message)
            case Disclosure():
                return self.disclosed(message)

    def has_taken(self, message: Answer) -> bool:
        """Whether the same message has come before, in whatever step the attempt is now."""
        known = (self.advertisements, self.shares, self.agreements, self.disclosures)
        return any(kind.get(message.index) == message for kind in known)

    def without(self, index: int) -> Coordinator:
        """Nobody waits for the client any more; what it has sent stands."""
        return self._with("gone", tuple(sorted({*self.gone, index})))

    def forget_sealed(self) -> Coordinator:
        """Without the sealed shares, which are most of the state; the sum can be unmasked without them."""
        bare = {index: shares.model_copy(update={"sealed": {}}) for index, shares in self.shares.items()}
        return self._with("shares", bare)

    @property
    def awaited(self) -> frozenset[int]:
        """Who is still to answer the step that is open."""
        expected, answered = self._turns()
        return frozenset(expected) - frozenset(answered) - frozenset(self.gone)

    def _turns(self) -> tuple[Iterable[int], Iterable[int]]:
        """Who is asked in the step that is open, and who has answered."""
        match self.phase:
            case Phase.ADVERTISE:
                return self.identities, self.advertisements
            case Phase.SHARE:
                return self.advertisements, self.shares
            case Phase.UPLOAD:
                return self.shares, self.uploaded
            case Phase.AGREE:
                return self.uploaded, self.agreements
            case Phase.UNMASK:
                return self.agreements, self.disclosures

    def advertised(self, message: Advertisement) -> Coordinator:
        """Raises ProtocolRefused if it is not signed by the client's identity, or is of another attempt."""
        self._check(
            Phase.ADVERTISE, message.index, self.identities, self.advertisements.get(message.index), message
        )
        identity = self.identities[message.index]
        if message.attempt != self.attempt or not has_signed(
            identity, message.signature, message.signed_text
        ):
            raise ProtocolRefused(f"the keys of client {message.index} are not signed for this attempt")
        return self._with("advertisements", {**self.advertisements, message.index: message})

    def shared(self, message: Shares) -> Coordinator:
        """Raises ProtocolRefused if the shares are not for the client's holders."""
        self._check(Phase.SHARE, message.index, self.advertisements, self.shares.get(message.index), message)
        if set(message.sealed) != set(self.graph.neighbours(message.index)):
            raise ProtocolRefused(f"client {message.index} shares its keys with others than its neighbours")
        return self._with("shares", {**self.shares, message.index: message})

    def received_upload(self, index: int) -> Coordinator:
        """The client's masked vector is stored."""
        self._check(Phase.UPLOAD, index, self.shares, None, index)
        return self._with("uploaded", tuple(sorted({*self.uploaded, index})))

    def agreed(self, message: Agreement) -> Coordinator:
        """Raises ProtocolRefused if the signature is not under the survivors of this attempt."""
        self._check(Phase.AGREE, message.index, self.uploaded, self.agreements.get(message.index), message)
        text = survivors_text(self.attempt, self.roster.digest, self.uploaded)
        if not has_signed(self.identities[message.index], message.signature, text):
            raise ProtocolRefused(f"client {message.index} has signed something else than the survivors")
        return self._with("agreements", {**self.agreements, message.index: message})

    def disclosed(self, message: Disclosure) -> Coordinator:
        """Raises ProtocolRefused if a share is one that the coordinator must not have."""
        self._check(Phase.UNMASK, message.index, self.uploaded, self.disclosures.get(message.index), message)
        if set(message.seeds) - set(self.uploaded) or set(message.mask_keys) & set(self.uploaded):
            raise ProtocolRefused(f"client {message.index} sent shares of the wrong keys, which are not kept")
        return self._with("disclosures", {**self.disclosures, message.index: message})

    def _check(
        self,
        phase: Phase,
        index: int,
        expected: Mapping[int, object] | tuple[int, ...],
        before: object,
        now: object,
    ) -> None:
        if self.phase is not phase or index not in expected:
            raise ProtocolRefused(
                f"client {index} is not waited for: the attempt is at the step {self.phase}"
            )
        if before is not None and before != now:
            raise ProtocolRefused(
                f"client {index} has sent something else for this step before, as two workers with copies "
                "of one state folder do"
            )

    # ------------------------------------------------------------ what goes out, as each phase ends

    def close_advertising(self) -> tuple[Coordinator, Roster]:
        """Raises AttemptAbandoned if too few clients are there, as all that close a phase do."""
        self._check_phase(Phase.ADVERTISE)
        self._check_enough(len(self.advertisements), "sent their keys")
        return self._with("phase", Phase.SHARE), self.roster

    def close_sharing(self) -> tuple[Coordinator, dict[int, Inbox]]:
        """To each client that shared what the others sealed for it."""
        self._check_phase(Phase.SHARE)
        self._check_enough(len(self.shares), "shared their keys")
        return self._with("phase", Phase.UPLOAD), {
            receiver: self.inbox_of(receiver) for receiver in self.shares
        }

    def inbox_of(self, receiver: int) -> Inbox:
        """What the others have sealed for a client."""
        return Inbox(
            sealed={
                sender: message.sealed[receiver]
                for sender, message in sorted(self.shares.items())
                if receiver in message.sealed
            }
        )

    def close_uploading(self) -> tuple[Coordinator, Survivors]:
        """Whose uploads are in the sum; nobody is added later, so that nobody asks for sealed shares."""
        self._check_phase(Phase.UPLOAD)
        self._check_enough(len(self.uploaded), "uploaded")
        return self.forget_sealed()._with("phase", Phase.AGREE), self.survivors

    @property
    def survivors(self) -> Survivors:
        return Survivors(members=self.uploaded)

    def close_agreeing(self) -> tuple[Coordinator, Agreements]:
        self._check_phase(Phase.AGREE)
        self._check_enough(len(self.agreements), "agreed on who is left")
        return self._with("phase", Phase.UNMASK), self.signed

    @property
    def signed(self) -> Agreements:
        """Everybody's signature under the survivors."""
        return Agreements(signatures={index: m.signature for index, m in sorted(self.agreements.items())})

    def close_unmasking(self) -> None:
        """Nobody is asked for more."""
        self._check_phase(Phase.UNMASK)
        self._check_enough(len(self.disclosures), "answered")

    def unmask(self, total: RingVector) -> None:
        """Turn the sum of the uploads into the sum of what they hide, in place.

        Raises:
            AttemptAbandoned: too few answered, or a key cannot be rebuilt from what they said.
        """
        self.close_unmasking()
        graph = self.graph
        masks = [
            Mask(seed_mask_key(self._rebuild_seed(graph, member), self.attempt, member), -1)
            for member in self.uploaded
        ]
        for missing in sorted(set(self.shares) - set(self.uploaded)):
            masks += self._masks_of_missing(graph, missing)
        apply_masks(total, masks)

    def _masks_of_missing(self, graph: Graph, missing: int) -> list[Mask]:
        """What the survivors hid with a drop-out, and nothing has cancelled."""
        others = sorted(set(graph.neighbours(missing)) & set(self.uploaded))
        private, roster = self._rebuild_mask_key(graph, missing), self.roster
        return [
            Mask(
                mask_key_between(private, roster, self.attempt, missing, other), 1 if missing < other else -1
            )
            for other in others
        ]

    def _rebuild_seed(self, graph: Graph, member: int) -> bytes:
        given = {holder: m.seeds[member] for holder, m in self.disclosures.items() if member in m.seeds}
        seed = combine(given, graph.threshold, graph.holders(member))
        if seed_digest_of(seed) != self.shares[member].seed_digest:
            raise AttemptAbandoned(f"the shares of client {member}'s seed do not give the seed")
        return seed

    def _rebuild_mask_key(self, graph: Graph, member: int) -> bytes:
        given = {
            holder: m.mask_keys[member] for holder, m in self.disclosures.items() if member in m.mask_keys
        }
        key = combine(given, graph.threshold, graph.holders(member))
        if agreement_key_of(key) != self.advertisements[member].mask_key:
            raise AttemptAbandoned(f"the shares of client {member}'s mask key do not give the key")
        return key

    # ------------------------------------------------------------ helpers

    @property
    def roster(self) -> Roster:
        """Everybody who has advertised."""
        return Roster(advertisements=tuple(message for _, message in sorted(self.advertisements.items())))

    @property
    def graph(self) -> Graph:
        return self.roster.graph(self.threshold_share)

    def _check_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise ProtocolRefused(f"the attempt is at the step {self.phase}, not {phase}")

    def _check_enough(self, found: int, what: str) -> None:
        needed = max(self.smallest, self.roster.threshold(self.threshold_share))
        if found < needed:
            raise AttemptAbandoned(
                f"{found} of {len(self.identities)} clients {what}, {needed} are needed: nothing was unmasked"
            )

    def _with(self, name: str, value: object) -> Coordinator:
        return self.model_copy(update={name: value})
