"""A coordinator that lies, a client that lies: nobody's numbers come out, and somebody says why."""

from __future__ import annotations

import re

import pytest

from shared.secure.client import Client, mask_key_between, seed_mask_key
from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.keys import has_signed, make_agreement_key, make_identity, sign
from shared.secure.masks import Mask, apply_masks
from shared.secure.messages import (
    Advertisement,
    Agreements,
    Attempt,
    Inbox,
    Roster,
    Shares,
    Survivors,
    View,
    survivors_text,
)
from shared.secure.ring import Ring, RingVector
from shared.secure.sharing import combine
from tests.helpers.secure_parties import ATTEMPT, VIEW, Party, random_vectors

RING = Ring(64, 6, 1.0)
EVERYBODY = [1, 4, 7, 10, 13, 16]


@pytest.fixture
def party() -> Party:
    return Party(random_vectors(RING, 6, 20, 0), RING)


def replaced(roster: Roster, **changes: object) -> Roster:
    """The roster with the second member's advertisement changed."""
    lied = [
        found.model_copy(update=changes) if at == 1 else found
        for at, found in enumerate(roster.advertisements)
    ]
    return Roster(advertisements=tuple(lied))


# ---------------------------------------------------------------- before anything is uploaded


def test_swapped_keys_are_not_signed(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    own = make_agreement_key()
    for what in ("mask_key", "sealing_key"):
        with pytest.raises(ProtocolRefused, match="client 4 are not signed by its identity"):
            party.clients[1].share(replaced(roster, **{what: own}))


def test_swapped_keys_signed_by_another_identity_are_refused(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    unsigned = roster.of(4).model_copy(update={"mask_key": make_agreement_key()})
    forged = unsigned.model_copy(update={"signature": sign(make_identity(), unsigned.signed_text)})
    with pytest.raises(ProtocolRefused, match="not signed by its identity"):
        party.clients[1].share(replaced(roster, **dict(forged)))
    with pytest.raises(ProtocolRefused, match="not signed"):
        party.clients[4].share(
            Roster(advertisements=(*roster.advertisements, forged.model_copy(update={"index": 99})))
        )


def test_a_client_known_under_another_identity_does_not_begin(party: Party) -> None:
    with pytest.raises(ProtocolRefused, match="under another identity key"):
        Client.begin(ATTEMPT, VIEW, 1, make_identity(), party.identities, 2 / 3)


def test_the_own_keys_come_back_unchanged(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    for lied in (
        replaced(roster, mask_key=make_agreement_key()),
        Roster(advertisements=roster.advertisements[2:]),
    ):
        with pytest.raises(ProtocolRefused, match="other keys for this client"):
            party.clients[4].share(lied)


def test_a_member_named_twice_is_refused(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    with pytest.raises(ProtocolRefused, match="names one twice"):
        party.clients[1].share(Roster(advertisements=(*roster.advertisements, roster.of(16))))


@pytest.mark.parametrize("what", ["model", "broadcast", "config"])
def test_a_fishing_model_is_noticed_by_everybody(what: str) -> None:
    """The coordinator gives client 7 a model of its own, which reads labels through any sum."""
    fished = VIEW.model_copy(update={what: "f" * 64})
    party = Party(random_vectors(RING, 6, 20, 0), RING, views={7: fished})
    roster = party.advertise(EVERYBODY)
    for index in EVERYBODY:
        with pytest.raises(ProtocolRefused, match=f"was given another {what} than this client"):
            party.clients[index].share(roster)


def test_the_digests_cannot_be_covered_up(party: Party) -> None:
    fished = Party(
        random_vectors(RING, 6, 20, 0), RING, views={7: VIEW.model_copy(update={"model": "f" * 64})}
    )
    roster = fished.advertise(EVERYBODY)
    told = roster.of(7).model_copy(update={"view": VIEW})
    lied = tuple(told if found.index == 7 else found for found in roster.advertisements)
    with pytest.raises(ProtocolRefused, match="client 7 are not signed"):
        fished.clients[1].share(Roster(advertisements=lied))


@pytest.mark.parametrize(
    "other",
    [
        ATTEMPT.model_copy(update={"attempt": 2}),
        ATTEMPT.model_copy(update={"round": 4}),
        ATTEMPT.model_copy(update={"run": "lung"}),
    ],
)
def test_a_replayed_round_is_refused(party: Party, other: Attempt) -> None:
    """Advertisements of another round, attempt or run, truly signed by their clients."""
    again = Party(party.vectors, RING, attempt=other)
    again.keys, again.identities = party.keys, party.identities
    again.clients = {index: again.begin(index) for index in EVERYBODY}
    old, new = party.advertise(EVERYBODY), again.clients
    mixed = tuple(new[1].advertisement if found.index == 1 else found for found in old.advertisements)
    with pytest.raises(ProtocolRefused, match="are of another attempt"):
        new[1].share(Roster(advertisements=mixed))
    with pytest.raises(ProtocolRefused, match="other keys for this client"):
        new[1].share(old)
    with pytest.raises(ProtocolRefused, match="not signed for this attempt"):
        Party(party.vectors, RING).coordinator.model_copy(update={"identities": party.identities}).advertised(
            new[1].advertisement
        )


def test_a_second_roster_is_refused(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    client, _ = party.clients[1].share(roster)
    with pytest.raises(ProtocolRefused, match="other members or keys than before"):
        client.share(Roster(advertisements=roster.advertisements[:4]))


# ---------------------------------------------------------------- shares


def with_inboxes(party: Party) -> dict[int, Inbox]:
    return party.share_keys(party.advertise(EVERYBODY), EVERYBODY)


def test_shares_are_for_their_receiver_from_their_sender(party: Party) -> None:
    inboxes = with_inboxes(party)
    mine, vector = dict(inboxes[1].sealed), party.vectors[1].copy()
    cases = {
        "of another sender": {**mine, 4: mine[7]},
        "for another receiver": {**mine, 4: inboxes[7].sealed[4]},
        "changed": {**mine, 4: mine[4][:-1] + bytes([mine[4][-1] ^ 1])},
        "sent back": {**mine, 4: inboxes[4].sealed[1]},
    }
    for case, sealed in cases.items():
        with pytest.raises(ProtocolRefused, match="sealed message was changed"):
            party.clients[1].mask(Inbox(sealed=sealed), vector)
        assert (vector == party.vectors[1]).all(), case


def test_shares_of_an_earlier_attempt_do_not_open(party: Party) -> None:
    inboxes = with_inboxes(party)
    later = Party(party.vectors, RING, attempt=ATTEMPT.model_copy(update={"attempt": 2}))
    with_inboxes(later)
    with pytest.raises(ProtocolRefused, match="sealed message was changed"):
        later.clients[1].mask(inboxes[1], later.vectors[1].copy())


def test_a_client_alone_with_its_masks_does_not_upload(party: Party) -> None:
    inboxes = with_inboxes(party)
    few = Inbox(sealed={4: inboxes[1].sealed[4]})
    with pytest.raises(AttemptAbandoned, match="2 of this client's key holders are left, 4 are needed"):
        party.clients[1].mask(few, party.vectors[1].copy())
    with pytest.raises(ProtocolRefused, match="no shares to give"):
        party.clients[1].mask(Inbox(sealed={**inboxes[1].sealed, 99: bytes(40)}), party.vectors[1].copy())


def test_a_client_that_shares_with_strangers_is_left_out(party: Party) -> None:
    roster = party.advertise(EVERYBODY)
    _, shares = party.clients[1].share(roster)
    with pytest.raises(ProtocolRefused, match="others than its neighbours"):
        party.coordinator.shared(Shares(index=1, seed_digest=shares.seed_digest, sealed={4: b"x"}))


# ---------------------------------------------------------------- who is left


def test_different_sets_for_different_clients_unmask_nothing(party: Party) -> None:
    """Half are told that 16 dropped out, half that 13 did: both answers would give both keys of each."""
    party.upload(with_inboxes(party), EVERYBODY)
    sets = {True: Survivors(members=(1, 4, 7, 10, 13)), False: Survivors(members=(1, 4, 7, 10, 16))}
    signatures = {}
    for index in (1, 4, 7, 10):
        party.clients[index], agreement = party.clients[index].agree(sets[index < 5])
        signatures[index] = agreement.signature
    for index in (1, 4, 7, 10):
        with pytest.raises(ProtocolRefused, match=r"2 clients have signed the set .* 4 are needed"):
            party.clients[index].disclose(Agreements(signatures=signatures))


def test_a_second_set_is_not_signed(party: Party) -> None:
    party.upload(with_inboxes(party), EVERYBODY)
    client, _ = party.clients[1].agree(Survivors(members=(1, 4, 7, 10)))
    with pytest.raises(ProtocolRefused, match="another set of survivors than before"):
        client.agree(Survivors(members=(1, 4, 7, 10, 13)))


@pytest.mark.parametrize(
    ("members", "error", "why"),
    [
        ((4, 7, 10, 13), ProtocolRefused, "left out of the sum"),
        ((1, 4, 7, 7), ProtocolRefused, "not in order"),
        ((1, 4, 7, 99), ProtocolRefused, "not all members"),
        ((1, 4, 7), AttemptAbandoned, "3 clients are left, 4 are needed"),
        ((1,), AttemptAbandoned, "1 clients are left"),
    ],
)
def test_sets_that_are_not_signed(
    party: Party, members: tuple[int, ...], error: type[Exception], why: str
) -> None:
    party.upload(with_inboxes(party), EVERYBODY)
    with pytest.raises(error, match=re.escape(why)):
        party.clients[1].agree(Survivors(members=members))


def test_a_survivor_that_shared_nothing_is_refused(party: Party) -> None:
    """Its masks with this client would not cancel, and its seed is held by nobody."""
    inboxes = with_inboxes(party)
    cut = Inbox(sealed={sender: sealed for sender, sealed in inboxes[1].sealed.items() if sender != 16})
    client = party.clients[1].mask(cut, party.vectors[1].copy())
    with pytest.raises(ProtocolRefused, match="shared no keys with this client"):
        client.agree(Survivors(members=tuple(EVERYBODY)))


def test_signatures_that_do_not_count(party: Party) -> None:
    """Of another attempt, of strangers, made up, or one given for many."""
    survivors = party.upload(with_inboxes(party), EVERYBODY)
    party.clients[1], own = party.clients[1].agree(survivors)
    roster = party.clients[1].roster
    assert roster is not None
    later = survivors_text(ATTEMPT.model_copy(update={"attempt": 2}), roster.digest, survivors.members)
    elsewhere = survivors_text(ATTEMPT, bytes(32), survivors.members)
    for signatures in (
        dict.fromkeys(EVERYBODY, own.signature),
        {index: bytes(64) for index in EVERYBODY},
        {1: own.signature} | {index: sign(party.keys[index], later) for index in EVERYBODY[1:]},
        {1: own.signature} | {index: sign(party.keys[index], elsewhere) for index in EVERYBODY[1:]},
        {1: own.signature, 99: own.signature, 100: own.signature, 101: own.signature},
    ):
        with pytest.raises(ProtocolRefused, match=r"^[01] clients have signed"):
            party.clients[1].disclose(Agreements(signatures=signatures))


def show_two_sets(party: Party, colluders: int) -> RingVector:
    """What a coordinator reads of the first client that tells half of the others that it dropped out.

    The last ``colluders`` clients sign both sets, and give all that they hold.
    """
    everybody = list(party.vectors)
    roster = party.advertise(everybody)
    party.upload(party.share_keys(roster, everybody), everybody)
    honest, bad = everybody[: len(everybody) - colluders], everybody[len(everybody) - colluders :]
    victim, middle = everybody[0], (len(honest) + 1) // 2
    held = {index: party.clients[index].held for index in bad}
    seeds = {index: found[victim].seed for index, found in held.items() if victim in found}
    mask_keys = {index: found[victim].mask_key for index, found in held.items() if victim in found}
    for group, members in ((honest[:middle], everybody), (honest[middle:], everybody[1:])):
        signatures = {}
        for index in group:
            party.clients[index], agreement = party.clients[index].agree(Survivors(members=tuple(members)))
            signatures[index] = agreement.signature
        text = survivors_text(party.attempt, roster.digest, members)
        signatures |= {index: sign(party.keys[index], text) for index in bad}
        for index in group:
            _, disclosed = party.clients[index].disclose(Agreements(signatures=signatures))
            seeds |= {index: disclosed.seeds[victim]} if victim in disclosed.seeds else {}
            mask_keys |= {index: disclosed.mask_keys[victim]} if victim in disclosed.mask_keys else {}
    graph = roster.graph(party.share)
    seed = combine(seeds, graph.threshold, graph.holders(victim))
    key = combine(mask_keys, graph.threshold, graph.holders(victim))
    masks = [Mask(seed_mask_key(seed, party.attempt, victim), -1)]
    for other in graph.neighbours(victim):
        between = mask_key_between(key, roster, party.attempt, victim, other)
        masks.append(Mask(between, 1 if victim > other else -1))
    read = party.uploads[victim].copy()
    apply_masks(read, masks)
    return read


@pytest.mark.parametrize(
    ("clients", "share", "enough"),
    [(4, 2 / 3, 2), (6, 2 / 3, 2), (10, 2 / 3, 4), (30, 2 / 3, 10), (6, 0.8, 4), (10, 0.8, 6)],
)
def test_so_many_colluders_as_the_documents_say_read_an_update_and_no_fewer(
    clients: int, share: float, enough: int
) -> None:
    """docs/privacy.md: 2t - n sign two sets of survivors, half of the honest ones each."""
    ring = Ring(64, clients, 1.0)
    vectors = random_vectors(ring, clients, 6, 0)
    with pytest.raises(ProtocolRefused, match="the coordinator may be showing different sets"):
        show_two_sets(Party(vectors, ring, share), enough - 1)
    assert (show_two_sets(Party(vectors, ring, share), enough) == vectors[1]).all()


def test_a_sparse_graph_has_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 clients with 8 neighbours 9 must sign: 4 could sign two sets, 3 cannot."""
    monkeypatch.setattr("shared.secure.graph.degree_for", lambda members: 8)
    ring = Ring(64, 14, 1.0)
    party = Party(random_vectors(ring, 14, 6, 0), ring, share=0.6)
    with pytest.raises(ProtocolRefused, match=r"8 clients have signed the set .* 9 are needed"):
        show_two_sets(party, 3)


# ---------------------------------------------------------------- shares of both


def test_both_shares_of_one_member_are_never_given(party: Party) -> None:
    """Whatever set is agreed on, each answer has of every member the seed's share or the mask key's."""
    survivors = party.upload(with_inboxes(party), EVERYBODY[:5])
    agreements = party.agree(survivors, EVERYBODY[:5])
    for index in EVERYBODY[:5]:
        client, disclosure = party.clients[index].disclose(agreements)
        assert set(disclosure.seeds) == set(EVERYBODY[:5])
        assert set(disclosure.mask_keys) == {16}
        other = Agreements(signatures={**agreements.signatures, 16: bytes(64)})
        assert client.disclose(other)[1] == disclosure
        with pytest.raises(ProtocolRefused, match="another set"):
            client.agree(Survivors(members=tuple(EVERYBODY)))


def test_nothing_is_disclosed_before_its_time(party: Party) -> None:
    everything = Agreements(signatures=dict.fromkeys(EVERYBODY, bytes(64)))
    with pytest.raises(ProtocolRefused, match="has not shown"):
        party.clients[1].disclose(everything)
    inboxes = with_inboxes(party)
    with pytest.raises(ProtocolRefused, match="before it has agreed"):
        party.clients[1].disclose(everything)
    with pytest.raises(ProtocolRefused, match="before it has uploaded"):
        party.clients[1].agree(Survivors(members=tuple(EVERYBODY)))
    assert set(inboxes) == set(EVERYBODY)


# ---------------------------------------------------------------- clients that lie


def disclosing(party: Party) -> Agreements:
    survivors = party.upload(with_inboxes(party), EVERYBODY[:5])
    return party.agree(survivors, EVERYBODY[:5])


def test_wrong_shares_are_noticed_and_the_attempt_abandoned(party: Party) -> None:
    agreements = disclosing(party)
    for index in EVERYBODY[:5]:
        _, disclosure = party.clients[index].disclose(agreements)
        if index == 1:
            disclosure = disclosure.model_copy(update={"seeds": {**disclosure.seeds, 7: bytes(32)}})
        party.coordinator = party.coordinator.disclosed(disclosure)
    with pytest.raises(AttemptAbandoned, match="client 7's seed do not give the seed"):
        party.coordinator.unmask(party.plain_sum(party.uploads))


def test_the_coordinator_does_not_keep_the_wrong_shares(party: Party) -> None:
    agreements = disclosing(party)
    _, disclosure = party.clients[1].disclose(agreements)
    for what in ("seeds", "mask_keys"):
        lied = disclosure.model_copy(update={what: {1: bytes(32), 16: bytes(32)}})
        with pytest.raises(ProtocolRefused, match="wrong keys"):
            party.coordinator.disclosed(lied)


def test_a_signature_under_another_set_is_not_taken(party: Party) -> None:
    party.upload(with_inboxes(party), EVERYBODY)
    _, agreement = party.clients[1].agree(Survivors(members=(1, 4, 7, 10)))
    with pytest.raises(ProtocolRefused, match="signed something else"):
        party.coordinator.agreed(agreement)


def test_secrets_stand_in_no_representation(party: Party) -> None:
    party.upload(with_inboxes(party), EVERYBODY)
    client = party.clients[1]
    for secret in (client.identity_key, client.seed, client.mask_key, client.sealing_key):
        assert repr(secret)[2:-1] not in repr(client)
    for held in client.held.values():
        assert repr(held.seed)[2:-1] not in repr(client)


def test_an_advertisement_is_signed_as_a_whole(party: Party) -> None:
    good = party.clients[1].advertisement
    changes: dict[str, object] = {
        "index": 2,
        "attempt": ATTEMPT.model_copy(update={"round": 9}),
        "view": View(model="b" * 64, broadcast=None, config="c" * 64),
        "sealing_key": bytes(32),
        "mask_key": bytes(32),
    }
    assert set(changes) | {"signature"} == set(Advertisement.model_fields)
    assert has_signed(party.identities[1], good.signature, good.signed_text)
    for name, value in changes.items():
        changed = good.model_copy(update={name: value})
        assert not has_signed(party.identities[1], good.signature, changed.signed_text)
