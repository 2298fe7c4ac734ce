"""The unmasked sum is the plain sum of the quantised vectors, bit for bit, whoever drops out and when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.messages import Attempt
from shared.secure.ring import Bits, Ring
from tests.helpers.secure_parties import STEPS, Party, random_vectors, restarted


def needed(members: int) -> int:
    return max(3, -(-2 * members // 3))


def expected_end(clients: list[int], lost: dict[int, str]) -> list[int] | str:
    """Whose vectors are in the sum, or the step at whose end the attempt is abandoned."""
    there = list(clients)
    members = None
    in_sum: list[int] = []
    for step in STEPS:
        there = [client for client in there if lost.get(client) != step]
        members = len(there) if members is None else members
        if len(there) < needed(members):
            return step
        in_sum = there if step == "upload" else in_sum
    return in_sum


@st.composite
def drop_outs(draw: st.DrawFn) -> tuple[int, dict[int, str]]:
    clients = draw(st.integers(3, 7))
    return clients, draw(
        st.dictionaries(
            st.sampled_from([3 * at + 1 for at in range(clients)]), st.sampled_from(STEPS), max_size=3
        )
    )


@settings(deadline=None, max_examples=40)
@given(bits=st.sampled_from([32, 64]), pattern=drop_outs(), seed=st.integers(0, 99), kills=st.booleans())
def test_every_pattern_of_drop_outs(
    bits: Bits, pattern: tuple[int, dict[int, str]], seed: int, kills: bool
) -> None:
    clients, lost = pattern
    party = Party(random_vectors(Ring(bits, clients, 2.0), clients, 9, seed), Ring(bits, clients, 2.0))
    end = expected_end(list(party.vectors), lost)
    between = party.restart if kills else None
    if isinstance(end, str):
        with pytest.raises(AttemptAbandoned, match=r"are needed|adds its numbers"):
            party.play(lost, between)
        return
    total = party.play(lost, between)
    plain = party.plain_sum({index: party.vectors[index] for index in end})
    assert total.tobytes() == plain.tobytes()


@pytest.mark.parametrize("step", STEPS)
def test_down_to_the_threshold_and_not_below(step: str) -> None:
    ring = Ring(32, 6, 1.0)
    party = Party(random_vectors(ring, 6, 5, 0), ring)
    members = list(party.vectors)
    total = party.play(dict.fromkeys(members[:2], step))
    there = members[2:] if step in STEPS[:3] else members
    assert total.tobytes() == party.plain_sum({k: party.vectors[k] for k in there}).tobytes()
    if step == "advertise":  # who never sent keys is no member
        return
    party = Party(random_vectors(ring, 6, 5, 0), ring)
    with pytest.raises(AttemptAbandoned, match=r"^3 of 6 clients .*, 4 are needed: nothing was unmasked$"):
        party.play(dict.fromkeys(members[:3], step))


def test_two_survivors_are_never_unmasked_even_where_they_are_the_majority() -> None:
    ring = Ring(64, 3, 1.0)
    party = Party(random_vectors(ring, 3, 5, 0), ring, share=0.51)
    with pytest.raises(AttemptAbandoned, match="3 are needed"):
        party.play({1: "upload"})
    with pytest.raises(AttemptAbandoned, match="adds its numbers to 5 or more"):
        Party(random_vectors(ring, 4, 5, 0), ring, smallest=5).clients[1].share(
            Party(random_vectors(ring, 4, 5, 0), ring).advertise([1, 4, 7, 10])
        )


def test_the_sparse_graph_gives_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above 64 clients, with the degree made small enough for 14."""
    monkeypatch.setattr("shared.secure.graph.degree_for", lambda members: 8)
    ring = Ring(64, 14, 1.0)
    party = Party(random_vectors(ring, 14, 9, 1), ring)
    members = list(party.vectors)
    lost = {members[5]: "advertise", members[1]: "share", members[8]: "upload", members[12]: "disclose"}
    total = party.play(lost)
    graph = party.coordinator.graph
    assert (graph.reach, graph.threshold, len(graph.neighbours(members[0]))) == (4, 5, 8)
    there = [index for index in members if index not in (members[5], members[1], members[8])]
    assert total.tobytes() == party.plain_sum({index: party.vectors[index] for index in there}).tobytes()


def test_a_client_asked_again_gives_the_same_answer() -> None:
    ring = Ring(64, 3, 1.0)
    party = Party(random_vectors(ring, 3, 50, 0), ring)
    everybody = list(party.vectors)
    roster = party.advertise(everybody)
    client, shares = party.clients[1].share(roster)
    client = restarted(client)
    assert client.share(roster) == (client, shares)
    party.clients[1] = client
    inboxes = party.share_keys(roster, everybody)
    first, second = party.vectors[1].copy(), party.vectors[1].copy()
    client = restarted(client.mask(inboxes[1], first))
    assert client.mask(inboxes[1], second) == client
    assert first.tobytes() == second.tobytes()
    with pytest.raises(ProtocolRefused, match="another vector"):
        client.mask(inboxes[1], party.vectors[4].copy())
    party.clients[1] = client.model_copy(update={"phase": "shared"})
    survivors = party.upload(inboxes, everybody)
    client, agreement = client.agree(survivors)
    assert restarted(client).agree(survivors) == (client, agreement)


def test_the_coordinator_takes_the_same_twice_and_another_never() -> None:
    ring = Ring(64, 3, 1.0)
    party = Party(random_vectors(ring, 3, 5, 0), ring)
    coordinator = party.coordinator.advertised(party.clients[1].advertisement)
    assert coordinator.advertised(party.clients[1].advertisement) == coordinator
    with pytest.raises(ProtocolRefused, match="something else for this step"):
        coordinator.advertised(party.begin(1).advertisement)
    with pytest.raises(ProtocolRefused, match="not waited for"):
        coordinator.received_upload(1)


def test_keys_are_fresh_in_every_attempt() -> None:
    ring = Ring(64, 3, 1.0)
    vectors = random_vectors(ring, 3, 200, 0)
    uploads = []
    for number in (1, 2):
        party = Party(vectors, ring, attempt=Attempt(run="skin", round=3, attempt=number))
        total = party.play()
        assert total.tobytes() == party.plain_sum(vectors).tobytes()
        uploads.append(party.uploads[1])
    assert not (uploads[0] == uploads[1]).any()


@pytest.mark.parametrize("bits", [32, 64])
def test_one_upload_is_uniform_and_tells_no_data_from_other_data(bits: Bits) -> None:
    """Chi-squared over the values of a byte, 255 degrees of freedom; zeros and large numbers look alike.

    The keys are drawn anew in each run of the test: 500 is passed by chance once in 10^17.
    """
    ring = Ring(bits, 3, 4.0)
    for values in (np.zeros(60_000), np.full(60_000, 3.9)):
        vector = ring.zeros(len(values))
        ring.encode(values, vector)
        party = Party(dict.fromkeys((0, 1, 2), vector), ring)
        party.play()
        for upload in party.uploads.values():
            counts = np.bincount(np.frombuffer(upload.tobytes(), dtype=np.uint8), minlength=256)
            mean = counts.sum() / 256
            assert ((counts - mean) ** 2 / mean).sum() < 500
        plain = np.bincount(np.frombuffer(vector.tobytes(), dtype=np.uint8), minlength=256)
        assert ((plain - mean) ** 2 / mean).sum() > 500
