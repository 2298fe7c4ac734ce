"""Numbers of the ring, masks, shares, keys and the graph, each against its law or an independent vector."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from random import Random

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.problems import InvalidConfiguration, ModelDiverged
from shared.secure.encoding import encode
from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.graph import degree_for, draw_graph
from shared.secure.keys import agree_on_secret, derive_key, open_sealed, seal
from shared.secure.masks import Mask, apply_masks
from shared.secure.ring import Bits, Ring, join_limbs, split_limbs
from shared.secure.sharing import combine, split

BITS = st.sampled_from([32, 64])


# ---------------------------------------------------------------- the ring


@given(bits=BITS, clients=st.integers(1, 65_535), limit=st.floats(1e-6, 1e6))
def test_no_sum_wraps_and_one_bit_more_would_not_be_exact(bits: Bits, clients: int, limit: float) -> None:
    try:
        ring = Ring(bits, clients, limit)
    except InvalidConfiguration:
        assert clients * limit * 2**8 >= 2 ** (bits - 2)
        return
    extreme = np.array([limit, -limit, 2 * limit, math.nextafter(limit, 0)])
    vector = ring.zeros(4)
    assert ring.encode(extreme, vector) == 1
    entries = [int(entry) for entry in vector.view(f"<i{bits // 8}")]
    assert all(abs(clients * entry) < 2 ** (bits - 1) and abs(entry) <= 2**52 for entry in entries)
    finer = round(math.ldexp(limit, ring.fraction + 1))
    assert clients * finer >= 2 ** (bits - 1) or finer > 2**52


@settings(deadline=None)
@given(
    bits=BITS,
    columns=st.integers(1, 20).flatmap(
        lambda n: st.lists(st.lists(st.floats(-3, 3), min_size=n, max_size=n), min_size=1, max_size=8)
    ),
)
def test_the_sum_of_encodings_is_the_sum_within_half_a_step_a_client(
    bits: Bits, columns: list[list[float]]
) -> None:
    ring, values = Ring(bits, len(columns), 3.0), np.array(columns)
    total = ring.zeros(values.shape[1])
    for row in values:
        encoded = ring.zeros(len(row))
        assert ring.encode(row, encoded) == 0
        total += encoded
    error = np.abs(ring.decode(total) - values.sum(axis=0))
    assert (error <= len(columns) * (2.0 ** -(ring.fraction + 1) + 1e-15)).all()


def test_clipped_entries_are_counted_and_what_is_not_finite_is_refused() -> None:
    ring = Ring(64, 4, 0.5)
    vector = ring.zeros(5)
    assert ring.encode(np.array([0.5, 0.75, -9.0, 0.0, -0.5]), vector) == 2
    assert ring.decode(vector).tolist() == [0.5, 0.5, -0.5, 0.0, -0.5]
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ModelDiverged):
            ring.encode(np.array([0, bad, 0, 0, 0]), vector)


@pytest.mark.parametrize(
    ("bits", "clients", "limit"),
    [(32, 50, 1e6), (64, 50, math.inf), (64, 0, 1.0), (64, 65_536, 1.0), (32, 9, 0.0)],
)
def test_a_ring_without_room_is_refused(bits: Bits, clients: int, limit: float) -> None:
    with pytest.raises(InvalidConfiguration):
        Ring(bits, clients, limit)


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=15))
def test_limbs_sum_to_the_sum_in_a_ring_of_32_bits(values: list[int]) -> None:
    total = np.zeros(4, dtype=np.uint32)
    for value in values:
        total += np.array(split_limbs(value), dtype=np.uint32)
    assert join_limbs(total.tolist(), len(values)) == sum(values)


def test_a_mask_left_in_the_limbs_is_noticed() -> None:
    with pytest.raises(AttemptAbandoned, match="mask was not removed"):
        join_limbs([3 * 65_535 + 1, 0, 0, 0], clients=3)
    with pytest.raises(InvalidConfiguration):
        split_limbs(2**64)


# ---------------------------------------------------------------- masks


def test_the_generator_is_aes_256_in_counter_mode() -> None:
    """NIST SP 800-38A, F.5.5: the keystream is the ciphertext xor the plaintext of its first block."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228")
    assert Cipher(AES(key), CTR(counter)).encryptor().update(plain) == cipher
    vector = np.zeros(4, dtype="<u8")
    apply_masks(vector, [Mask(key, 1)])
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(32))
    assert vector.tolist() == list(struct.unpack("<4Q", stream))


@settings(deadline=None, max_examples=20)
@given(bits=BITS, length=st.sampled_from([1, 7, 32_768, 65_536, 65_537, 200_001]))
def test_masks_cancel_whatever_the_length(bits: Bits, length: int) -> None:
    ring = Ring(bits, 3, 1.0)
    vector = ring.zeros(length)
    keys = [hashlib.sha256(bytes([at])).digest() for at in range(3)]
    apply_masks(vector, [Mask(key, 1) for key in keys])
    whole = vector.copy()
    assert vector.any()
    apply_masks(vector, [Mask(key, -1) for key in reversed(keys)])
    assert not vector.any()
    apply_masks(vector[: length // 2], [Mask(key, 1) for key in keys])
    assert (vector[: length // 2] == whole[: length // 2]).all()


# ---------------------------------------------------------------- shares


@settings(deadline=None, max_examples=15)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 4), st.integers(0, 2))
def test_a_threshold_of_shares_gives_the_secret_and_one_fewer_does_not(
    secret: bytes, threshold: int, more: int
) -> None:
    holders = [5 * at + 2 for at in range(threshold + more)]
    shares = split(secret, threshold, holders)
    for some in itertools.combinations(holders, threshold):
        assert combine({holder: shares[holder] for holder in some}, threshold, holders) == secret
    with pytest.raises(AttemptAbandoned):
        combine({holder: shares[holder] for holder in holders[: threshold - 1]}, threshold, holders)
    forged = {holder: bytes(32) for holder in holders[:1]} | {h: shares[h] for h in holders[1:threshold]}
    assert combine(forged, threshold, holders) != secret


@given(st.binary(min_size=32, max_size=32), st.integers(2, 12), st.integers(0, 8), st.randoms())
@settings(max_examples=30, deadline=None)
def test_keys_are_rebuilt_as_pycryptodome_does(
    secret: bytes, threshold: int, more: int, random: Random
) -> None:
    """From any shares, also wrong ones: the same element of GF(2^128)."""
    holders = list(range(threshold + more))
    shares = split(secret, threshold, holders)
    chosen = sorted(random.sample(holders, threshold))
    wrong = chosen[0]
    shares[wrong] = random.randbytes(32)
    halves = [
        [(holder + 1, shares[holder][part]) for holder in chosen] for part in (slice(16), slice(16, 32))
    ]
    expected = b"".join(Shamir.combine(half) for half in halves)
    assert combine({holder: shares[holder] for holder in chosen}, threshold, holders) == expected


# ---------------------------------------------------------------- keys


def test_keys_are_for_one_purpose_and_place() -> None:
    secret = bytes(range(32))
    keys = [
        derive_key(secret, *context)
        for context in (("a", "b", 1), ("a", "b", 2), ("ab", 1), ("a", "b1"), ("a", b"\x01"), ("a", "1"))
    ]
    assert len({*keys, secret}) == len(keys) + 1
    assert all(len(key) == 32 for key in keys)


def test_a_sealed_message_opens_for_its_place_alone() -> None:
    key, place = bytes(32), encode("shares", "run", 1, 1, 2, 3)
    sealed = seal(key, b"share", place)
    assert open_sealed(key, sealed, place) == b"share"
    assert seal(key, b"share", place) != sealed
    for bad_key, bad, bad_place in (
        (bytes(31) + b"1", sealed, place),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1]), place),
        (key, sealed, encode("shares", "run", 1, 1, 3, 2)),
        (key, b"", place),
    ):
        with pytest.raises(ProtocolRefused):
            open_sealed(bad_key, bad, bad_place)


def test_a_public_key_of_small_order_is_refused() -> None:
    with pytest.raises(ProtocolRefused):
        agree_on_secret(bytes(range(32)), bytes(32))


# ---------------------------------------------------------------- the graph


@settings(max_examples=30, deadline=None)
@given(members=st.sets(st.integers(0, 10_000), min_size=3, max_size=150), seed=st.binary(max_size=8))
def test_the_graph_is_mutual_and_of_one_degree(members: set[int], seed: bytes) -> None:
    graph = draw_graph(sorted(members), len(members) // 2 + 1, seed)
    degree = degree_for(len(members))
    for member in members:
        neighbours = graph.neighbours(member)
        assert len(set(neighbours)) == degree == len(neighbours)
        assert member not in neighbours
        assert all(member in graph.neighbours(other) for other in neighbours)
        assert graph.threshold > len(graph.holders(member)) / 2


def test_degrees_of_sparse_graphs_grow_slowly_and_other_seeds_join_others() -> None:
    degrees = [degree_for(members) for members in (64, 65, 100, 200, 500, 1000)]
    assert degrees[0] == 63
    assert degrees[1:] == sorted(degrees[1:])
    assert degrees[-1] < 150
    one, two = (draw_graph(range(100), 67, seed) for seed in (b"one", b"two"))
    assert any(one.neighbours(member) != two.neighbours(member) for member in range(100))


def test_the_degree_keeps_its_promise_in_draws() -> None:
    """With a fifth gone everybody's holders are enough, with a fifth colluding nobody's are: 200 draws."""
    members, draw = 65, np.random.default_rng(0)
    for at in range(200):
        graph = draw_graph(range(members), 44, at.to_bytes(2, "big"))
        adverse = set(draw.choice(members, members // 5, replace=False).tolist())
        for member in range(members):
            others = set(graph.neighbours(member))
            assert len(others - adverse) >= graph.threshold
            assert len(others & adverse) < graph.threshold
