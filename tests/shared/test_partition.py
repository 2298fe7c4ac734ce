"""Partitions against the published allocations (reference 4.2 to 4.5) and their invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.config import Partition
from shared.data.partition import deal, imbalance, partition, table, thinned, validation
from shared.problems import InvalidConfiguration

# reference 4.5: CIFAR-10, beta 0.5, 10 clients, seed 0; rows are clients, columns classes
CIFAR10 = [
    [953, 142, 141, 75, 695, 819, 0, 2482, 0, 0],
    [16, 43, 902, 1650, 86, 182, 0, 693, 110, 6],
    [9, 8, 290, 769, 841, 283, 119, 1044, 1014, 58],
    [395, 1200, 48, 68, 896, 681, 90, 17, 1351, 301],
    [504, 2917, 570, 721, 121, 356, 0, 0, 0, 0],
    [1262, 71, 325, 119, 1560, 14, 1, 85, 366, 0],
    [9, 273, 1657, 40, 1, 130, 1911, 21, 1160, 0],
    [722, 3, 281, 738, 22, 974, 624, 1, 82, 878],
    [1127, 153, 680, 500, 698, 1139, 92, 23, 1, 3665],
    [3, 190, 106, 320, 80, 422, 2163, 634, 916, 92],
]


def balanced(classes: int, each: int) -> np.ndarray:
    """Labels in an order that is not sorted: 0, 1, 2, ..., 0, 1, 2, ..."""
    return np.tile(np.arange(classes), each)


def counts(parts: list[np.ndarray], targets: np.ndarray, classes: int) -> list[list[int]]:
    return [np.bincount(targets[part], minlength=classes).tolist() for part in parts]


def niid1(clients: int, beta: float) -> Partition:
    return Partition(kind="niid1", clients=clients, beta=beta)


def test_niid1_gives_the_published_matrix_for_cifar10() -> None:
    targets = balanced(10, 5000)
    assert counts(partition(niid1(10, 0.5), targets, 10, seed=0), targets, 10) == CIFAR10


@pytest.mark.parametrize(
    ("classes", "each", "beta", "sizes"),
    [
        (10, 6000, 0.5, [6260, 4975, 5977, 6056, 4360, 6274, 5714, 6651, 5615, 8118]),
        (10, 9000, 0.5, [12148, 8566, 9009, 7325, 8144, 9623, 9370, 9825, 4923, 11067]),
        (10, 5000, 0.1, [7615, 5142, 7498, 865, 2731, 6130, 6415, 3034, 6091, 4479]),
        (100, 500, 5.0, [4942, 5010, 5026, 5011, 5032, 4894, 4920, 5093, 5035, 5037]),
    ],
    ids=["fashion-mnist", "cinic10", "cifar10-beta0.1", "cifar100"],
)
def test_niid1_gives_the_published_sizes(classes: int, each: int, beta: float, sizes: list[int]) -> None:
    parts = partition(niid1(10, beta), balanced(classes, each), classes, seed=0)
    assert [len(part) for part in parts] == sizes


@pytest.mark.parametrize(("clients", "smallest"), [(30, 671), (50, 379)])
def test_niid1_with_more_clients(clients: int, smallest: int) -> None:
    parts = partition(niid1(clients, 0.5), balanced(10, 5000), 10, seed=0)
    assert min(map(len, parts)) == smallest


def test_niid1_of_thinned_classes_gives_the_published_sizes() -> None:
    parts = partition(Partition.model_validate("niid1:10:0.5:10"), balanced(10, 5000), 10, seed=0)
    assert [len(part) for part in parts] == [2270, 1564, 1227, 2062, 3923, 2181, 1758, 1682, 2631, 1133]


@pytest.mark.parametrize(
    ("each", "rho", "kept"),
    [
        (5000, 2, [5000, 4629, 4286, 3968, 3674, 3401, 3149, 2916, 2700, 2500]),
        (5000, 5, [5000, 4181, 3496, 2924, 2445, 2044, 1709, 1429, 1195, 1000]),
        (5000, 10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
        (5000, 20, [5000, 3584, 2569, 1842, 1320, 946, 678, 486, 348, 250]),
        (5000, 50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
        (1000, 10, [1000, 774, 599, 464, 359, 278, 215, 166, 129, 100]),
        (1000, 50, [1000, 647, 419, 271, 175, 113, 73, 47, 30, 20]),
    ],
)
def test_exponential_imbalance_gives_the_published_counts(each: int, rho: float, kept: list[int]) -> None:
    assert imbalance([each] * 10, rho) == kept


@pytest.mark.parametrize(
    ("classes", "each", "biased", "unbiased", "shard"),
    [
        (10, 5000, 5, 1, 833),
        (10, 6000, 5, 1, 1000),
        (10, 9000, 5, 1, 1500),
        (100, 500, 5, 1, 83),
        (10, 5000, 50, 10, 83),
        (10, 5000, 40, 10, 100),
    ],
)
def test_niid2_gives_equal_sizes_and_owned_classes(
    classes: int, each: int, biased: int, unbiased: int, shard: int
) -> None:
    targets = balanced(classes, each)
    spec = Partition(kind="niid2", clients=biased + unbiased, unbiased=unbiased)
    owned = classes // 5
    expected = np.zeros((biased + unbiased, classes), dtype=int)
    for client in range(biased):
        start = owned * client % classes
        expected[client, start : start + owned] = 5 * shard
    expected[biased:] = shard
    parts = partition(spec, targets, classes, seed=0)
    assert counts(parts, targets, classes) == expected.tolist()
    assert len(np.unique(np.concatenate(parts))) == (biased + unbiased) * classes * shard


def test_niid2_takes_the_first_examples_of_each_class_whatever_the_seed() -> None:
    targets = balanced(10, 12)  # shard 2: biased client 0 owns classes 0 and 1 and takes 10 of each
    spec = Partition(kind="niid2", clients=6, unbiased=1)
    first, other = partition(spec, targets, 10, seed=0), partition(spec, targets, 10, seed=1)
    assert sorted(first[0]) == sorted([10 * i for i in range(10)] + [10 * i + 1 for i in range(10)])
    assert sorted(first[5]) == list(range(100, 120))
    assert [sorted(part) for part in first] == [sorted(part) for part in other]
    assert first[0].tolist() != other[0].tolist()


@given(
    clients=st.integers(1, 12),
    beta=st.floats(0.2, 5),
    seed=st.integers(0, 2**63 - 1),
    kind=st.sampled_from(["iid", "niid1"]),
)
@settings(max_examples=30, deadline=None)
def test_every_example_goes_to_exactly_one_client(clients: int, beta: float, seed: int, kind: str) -> None:
    targets = balanced(5, 160)
    spec = Partition.model_validate({"kind": kind, "clients": clients, "beta": beta})
    parts = partition(spec, targets, 5, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(800))
    again = partition(spec, targets, 5, seed)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))
    if kind == "iid":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert min(map(len, parts)) >= 10


def test_the_partitions_own_seed_comes_before_the_runs() -> None:
    targets = balanced(5, 40)

    def first(spec: Partition, seed: int) -> list[int]:
        positions: list[int] = partition(spec, targets, 5, seed)[0].tolist()
        return positions

    fixed, free = Partition(kind="iid", clients=2, seed=7), Partition(kind="iid", clients=2)
    assert first(fixed, 1) == first(fixed, 2) == first(free, 7)
    assert first(free, 1) != first(free, 2)


@pytest.mark.parametrize(
    ("short", "targets", "classes", "said"),
    [
        ("iid:5", np.arange(4) % 2, 2, "4 examples cannot be dealt to 5 clients"),
        ("niid1:5", balanced(2, 20), 2, "but there are 40 in all"),
        ("niid1:20:0.001", balanced(2, 110), 2, "never had all 20 clients"),
        ("niid2:5+1", balanced(4, 100), 4, "multiple of 5, not 4"),
        ("niid2:5+1", balanced(5, 5), 5, "the smallest class has 5"),
        ("niid2:4+1:3", balanced(4, 100), 4, "4 biased clients with 3 classes each do not cover 4 classes"),
        ("niid2:3+1:2", balanced(4, 100), 4, "3 biased clients with 2 classes each do not cover 4 classes"),
        ("neighbours:3", balanced(4, 100), 4, "5 classes a client, but there are 4"),
        ("neighbours:50:2", balanced(10, 30), 10, r"want \d+ examples of class \d, but there are 30"),
        ("by-key:2", balanced(2, 5), 2, "the task's examples have no key"),
        ("iid:2", np.array([0, 3]), 3, "from 0 to 3, but there are 3 classes"),
    ],
)
def test_an_impossible_request_says_why(short: str, targets: np.ndarray, classes: int, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        partition(Partition.model_validate(short), targets, classes, seed=0)


def test_a_class_cannot_be_made_larger() -> None:
    with pytest.raises(InvalidConfiguration, match=r"rho is 0\.5"):
        imbalance([10, 10], 0.5)


def test_the_table_shows_each_clients_classes() -> None:
    targets = balanced(10, 5000)
    lines = table(partition(niid1(10, 0.5), targets, 10, 0), targets, [str(i) for i in range(10)]).split("\n")
    assert lines[0].split() == ["client", *map(str, range(10)), "all"]
    assert [int(cell) for cell in lines[1].split()] == [0, *CIFAR10[0], 5307]
    assert [int(cell) for cell in lines[-1].split()[1:]] == [5000] * 10 + [50000]


# ---------------------------------------------------------------- text, writers, keys, tests of one's own


@pytest.mark.parametrize(("short", "biased", "shard"), [("niid2:4+1:2", 4, 6000), ("niid2:40+10:2", 40, 600)])
def test_ag_news_is_dealt_by_pairs_of_classes(short: str, biased: int, shard: int) -> None:
    targets = balanced(4, 30_000)  # reference 4.4: biased client i has the classes {2i, 2i + 1} mod 4
    spec = Partition.model_validate(short)
    parts = partition(spec, targets, 4, seed=0)
    pairs = [[2 * shard, 2 * shard, 0, 0], [0, 0, 2 * shard, 2 * shard]]
    expected = [pairs[i % 2] for i in range(biased)] + [[shard] * 4] * (spec.clients - biased)
    assert counts(parts, targets, 4) == expected
    assert len(np.unique(np.concatenate(parts))) == 120_000


@pytest.mark.parametrize("each", [3, 5])
def test_neighbours_have_log_normal_sizes_and_classes_in_a_row(each: int) -> None:
    targets = balanced(10, 8000)
    spec = Partition.model_validate(f"neighbours:200:{each}")
    parts = partition(spec, targets, 10, seed=0)
    rows = np.array(counts(parts, targets, 10))
    for client, row in enumerate(rows):
        own = [(client + offset) % 10 for offset in range(each)]
        assert row.sum() == row[own].sum()
        assert row[own].max() - row[own].min() <= 1
    logs = np.log(rows.sum(axis=1) - 4.5)  # the draw was rounded down, by a half in the mean
    assert logs.mean() == pytest.approx(4, abs=4 / 200**0.5)
    assert logs.std() == pytest.approx(1, abs=0.2)
    assert rows.sum() == len(np.unique(np.concatenate(parts)))


def test_whole_keys_go_to_one_client() -> None:
    keys = np.array([7, 2, 2, 9, 7, 4, 9, 9])
    targets = np.zeros(8, dtype=int)
    one_each = partition(Partition(kind="by-key", clients=4), targets, 2, seed=0, keys=keys)
    assert [sorted(part) for part in one_each] == [[1, 2], [5], [0, 4], [3, 6, 7]]  # keys 2, 4, 7, 9
    shared = partition(Partition.model_validate("by-key:3"), targets, 2, seed=0, keys=keys)
    assert [sorted(part) for part in shared] == [[1, 2, 5], [0, 4], [3, 6, 7]]
    with pytest.raises(InvalidConfiguration, match="4 keys cannot be dealt to 5 clients"):
        partition(Partition(kind="by-key", clients=5), targets, 2, seed=0, keys=keys)


def test_a_clients_own_test_is_a_share_of_one_draw() -> None:
    targets = balanced(10, 100)
    whole = partition(niid1(5, 0.5), targets, 10, seed=3)
    spec = Partition(kind="niid1", clients=5, held_out=0.1)
    shares = deal(spec, targets, 10, seed=3)
    for part, share in zip(whole, shares, strict=True):
        assert np.array_equal(np.concatenate([share.train, share.test]), part)
        assert len(share.test) == len(part) // 10
    assert all(
        np.array_equal(one, share.train)
        for one, share in zip(partition(spec, targets, 10, seed=3), shares, strict=True)
    )
    lonely = deal(Partition(kind="iid", clients=2, held_out=0.99), np.array([0, 1]), 2, seed=0)
    assert [(len(share.train), len(share.test)) for share in lonely] == [(1, 0), (1, 0)]


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "niid2", "clients": 20, "unbiased": 5},
        {"kind": "niid1", "clients": 4, "rho": 3},
        {"kind": "iid", "clients": 3, "held_out": 0.2},
        {"kind": "by-key", "clients": 3},
    ],
)
def test_validation_is_of_every_class_and_dealt_to_nobody(spec: dict[str, Any]) -> None:
    targets = balanced(10, 100)
    keys = np.arange(1000) % 3
    held = validation(given := Partition(**spec, validation=200), targets, 10, seed=3)
    assert np.bincount(targets[held]).tolist() == [20] * 10
    assert np.array_equal(held, np.sort(held))
    shares = deal(given, targets, 10, seed=3, keys=keys)
    dealt = np.concatenate([part for share in shares for part in (share.train, share.test)])
    assert len(set(dealt)) == len(dealt)
    assert not set(dealt) & set(held)
    assert len(dealt) == 800 or spec["kind"] == "niid1"
    rest = np.setdiff1d(np.arange(1000), held)
    alone = deal(Partition(**spec), targets[rest], 10, seed=3, keys=keys[rest])
    for share, one in zip(shares, alone, strict=True):
        assert np.array_equal(share.train, rest[one.train])
    assert not np.array_equal(held, validation(given, targets, 10, seed=4))
    own_seed = given.model_copy(update={"seed": 3})
    assert np.array_equal(held, validation(own_seed, targets, 10, seed=4))


def test_validation_follows_the_classes_shares_and_leaves_something() -> None:
    targets = np.repeat([0, 1, 2], [600, 300, 100])
    held = validation(Partition(kind="iid", clients=2, validation=50), targets, 3, seed=0)
    assert np.bincount(targets[held]).tolist() == [30, 15, 5]
    with pytest.raises(InvalidConfiguration, match="validation 1000 leaves nothing of 1000"):
        deal(Partition(kind="iid", clients=2, validation=1000), targets, 3, seed=0)


def test_the_common_test_set_is_thinned_like_the_training_set() -> None:
    targets = balanced(10, 1000)
    kept = thinned(Partition(kind="niid1", clients=10, test_rho=10), targets, 10)
    number = np.bincount(targets[kept])
    assert number.tolist() == [1000, 774, 599, 464, 359, 278, 215, 166, 129, 100]  # reference 4.3
    assert kept[targets[kept] == 9].tolist() == [10 * i + 9 for i in range(100)]  # the first of each class
    assert thinned(Partition(kind="iid", clients=2), targets, 10).tolist() == list(range(10_000))


@pytest.mark.parametrize(
    ("short", "fields"),
    [
        ("iid:6", {"kind": "iid", "clients": 6}),
        ("niid1:10:.1", {"kind": "niid1", "clients": 10, "beta": 0.1}),
        ("niid1:10:0.5:10", {"kind": "niid1", "clients": 10, "rho": 10}),
        ("niid2:50+10", {"kind": "niid2", "clients": 60, "unbiased": 10}),
        ("niid2:4+1:2", {"kind": "niid2", "clients": 5, "unbiased": 1, "classes_per_client": 2}),
        ("neighbours:200:3", {"kind": "neighbours", "clients": 200, "classes_per_client": 3}),
        ("by-key:12", {"kind": "by-key", "clients": 12}),
    ],
)
def test_a_short_form_says_what_the_fields_say(short: str, fields: dict[str, object]) -> None:
    assert Partition.model_validate(short) == Partition.model_validate(fields)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("niid3:4", "'niid3:4' is none of iid:N"),
        ("niid2:4+1", "multiple of 5 biased clients, not 4"),
        ({"kind": "iid", "clients": 2, "rho": 2}, "rho 2 goes with niid1, not with iid"),
        ({"kind": "by-key", "clients": 2, "classes_per_client": 2}, "classes_per_client 2 goes with niid2"),
        ({"kind": "niid2", "clients": 2, "unbiased": 3}, "3 unbiased clients of 2 in all"),
    ],
)
def test_a_contradiction_is_refused_at_birth(given: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Partition.model_validate(given)
