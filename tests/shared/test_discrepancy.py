from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shared.discrepancy import check_possible, discrepancy, largest
from shared.problems import InvalidConfiguration, InvalidRequest

VECTORS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "weighting_vectors.yaml").read_text(encoding="utf-8")
)["discrepancy"]
VECTORS["D10"] |= {"D": [0.05] * 20 + [0.0] * 80, "T": [0.01] * 100}  # written as "20 x 0.05 then 80 x 0"

counts = st.lists(st.integers(0, 10**12), min_size=2, max_size=12).filter(any)
metrics = st.sampled_from(["kl", "l1", "l2", "cosine"])


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_vectors(vector: dict[str, Any], metric: Any) -> None:
    assert discrepancy(vector["D"], vector["T"], metric) == pytest.approx(vector[metric], abs=1e-9)


@given(counts, metrics)
def test_uniform_is_an_explicit_target_of_equal_shares(local: list[int], metric: Any) -> None:
    explicit = discrepancy(local, [3.0] * len(local), metric)
    assert discrepancy(local, "uniform", metric) == pytest.approx(explicit, abs=1e-12)


@given(counts)
def test_kl_to_uniform_is_ln_c_minus_entropy(local: list[int]) -> None:
    shares = np.array(local) / sum(local)
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    assert discrepancy(local, "uniform", "kl") == pytest.approx(math.log(len(local)) - entropy, abs=1e-9)
    assert 0 <= discrepancy(local, "uniform", "kl") <= math.log(len(local)) + 1e-12


@given(counts, metrics, st.integers(1, 10**6))
def test_only_proportions_matter(local: list[int], metric: Any, factor: int) -> None:
    scaled = [factor * count for count in local]
    assert discrepancy(scaled, "uniform", metric) == pytest.approx(
        discrepancy(local, "uniform", metric), abs=1e-9
    )


@given(counts, metrics)
def test_a_client_is_at_no_distance_from_itself(local: list[int], metric: Any) -> None:
    assert discrepancy(local, local, metric) == pytest.approx(0, abs=1e-9)


@given(counts, metrics, st.randoms(use_true_random=False))
def test_the_order_of_the_classes_does_not_change_a_bit(local: list[int], metric: Any, random: Any) -> None:
    target = list(range(1, len(local) + 1))
    order = random.sample(range(len(local)), len(local))
    shuffled = discrepancy([local[i] for i in order], [target[i] for i in order], metric)
    assert shuffled == discrepancy(local, target, metric)


def test_huge_counts_do_not_overflow() -> None:
    assert discrepancy([1e308, 1e308, 1e308, 0], "uniform") == pytest.approx(math.log(4 / 3))


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ([0, 0, 0], "all 3 classes have 0"),
        ([1, -1], "class 1 has -1"),
        ([math.nan, 1], "class 0 has nan"),
        ([math.inf, 1], "class 0 has inf"),
        ([], "shape (0,)"),
        ([[1, 2]], "shape (1, 2)"),
    ],
)
def test_bad_counts_are_named(local: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        discrepancy(local, "uniform")
    assert said in caught.value.detail
    assert not isinstance(caught.value, InvalidConfiguration)


@pytest.mark.parametrize(
    ("target", "said"),
    [([0, 0], "all 2 classes have 0"), ([1, 1, 1], "3 shares for 2"), ([1, -1], "class 1 has")],
)
def test_bad_targets_are_the_configurations_fault(target: Any, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        discrepancy([1, 2], target)


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match="'hellinger' is none of kl, l1, l2, cosine"):
        discrepancy([1, 2], "uniform", "hellinger")


# ---------------------------------------------------------------- the range (case C2)


@pytest.mark.parametrize(
    ("metric", "target", "classes", "end"),
    [
        ("kl", "uniform", 10, 2.302585092994046),  # ln 10
        ("kl", (0.5, 0.25, 0.25), 3, 1.3862943611198906),  # ln 4
        ("kl", (2, 2, 0), 3, 0.6931471805599453),  # ln 2, or infinity
        ("l1", "uniform", 10, 1.8),
        ("l1", (0.5, 0.5, 0), 3, 2.0),
        ("l2", "uniform", 10, 0.9486832980505138),  # sqrt(0.9)
        ("cosine", "uniform", 10, 0.683772233983162),  # 1 - 1/sqrt(10)
        (
            "cosine",
            (0.6, 0.4),
            2,
            0.4452998039,
        ),  # 1 - 0.4/sqrt(0.52)
    ],
)
def test_c2_the_end_of_the_range_by_hand(metric: Any, target: Any, classes: int, end: float) -> None:
    assert largest(metric, target, classes) == pytest.approx(end, abs=1e-9)
    check_possible(end, metric, target, classes)
    check_possible(0.0, metric, target, classes)
    for above in (end + 1e-6, 1e308):
        with pytest.raises(
            InvalidRequest, match=rf"is above .*, the largest that labels of {classes} classes"
        ):
            check_possible(above, metric, target, classes)
    with pytest.raises(InvalidRequest, match="is above"):
        check_possible(math.nan, metric, target, classes)


@given(counts, metrics, st.data())
def test_c2_every_discrepancy_is_possible(local: list[int], metric: Any, data: st.DataObject) -> None:
    shares = st.lists(st.floats(0, 1), min_size=len(local), max_size=len(local)).filter(lambda q: sum(q) > 0)
    target: Any = data.draw(st.one_of(st.just("uniform"), shares))
    check_possible(discrepancy(local, target, metric), metric, target, len(local))


def test_c2_only_kl_to_a_target_with_an_empty_class_can_be_infinite() -> None:
    check_possible(math.inf, "kl", (1, 1, 0), 3)
    impossible: list[tuple[Any, Any]] = [("kl", "uniform"), ("kl", (1, 2, 3)), ("l1", (1, 1, 0))]
    for metric, target in impossible:
        with pytest.raises(InvalidRequest, match="is infinite"):
            check_possible(math.inf, metric, target, 3)
