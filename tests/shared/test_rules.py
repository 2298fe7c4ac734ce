"""Aggregation rules: vectors by hand, a second implementation of each, laws, and what a liar can do."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from shared.config import RunConfig
from shared.problems import InvalidRequest
from shared.rules import (
    AnyRule,
    ClippedRule,
    CoordinateRule,
    GeometricMedianRule,
    KrumRule,
    MeanRule,
    MedianRule,
    MultiKrumRule,
    TrimmedMeanRule,
    VectorRule,
)

Rows = NDArray[np.float64]
ROBUST: list[VectorRule | CoordinateRule] = [
    ClippedRule(),
    TrimmedMeanRule(trim=0.2),
    MedianRule(),
    KrumRule(),
    MultiKrumRule(),
    GeometricMedianRule(),
]


def centre(rule: VectorRule | CoordinateRule, rows: Rows, weights: Any) -> Rows:
    """R of displacements from zero, by the rule's own kind."""
    given_weights = np.asarray(weights, dtype=np.float64)
    if isinstance(rule, CoordinateRule):
        return rule.centre(rows, given_weights)
    return rule.coefficients(given_weights, rows @ rows.T) @ rows


def equal(clients: int) -> Rows:
    return np.full(clients, 1 / clients)


def updates(clients: int, seed: int = 0, size: int = 7) -> Rows:
    return np.random.default_rng(seed).normal(size=(clients, size))


# ---------------------------------------------------------------- by hand


def test_clipped_by_hand() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 100.0]])  # norms 5, 1, 100: the median is 5
    assert centre(ClippedRule(), rows, equal(3)) == pytest.approx([1.0, 10 / 3])
    assert centre(ClippedRule(norm=1.0), rows, [0.5, 0.25, 0.25]) == pytest.approx([0.3, 0.9])
    assert centre(ClippedRule(norm=1000.0), rows, equal(3)) == pytest.approx(rows.mean(axis=0))
    assert centre(ClippedRule(), np.zeros((3, 2)), equal(3)) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("values", "weights", "trim", "mean"),
    [
        ([1.0, 2.0, 3.0, 4.0, 100.0], equal(5), 0.2, 3.0),
        ([1.0, 2.0, 3.0, 4.0, 100.0], equal(5), 0.4, 3.0),
        # half of the first and of the last: (0.1*1 + 0.2*(2+3+4) + 0.1*100) / 0.8
        ([1.0, 2.0, 3.0, 4.0, 100.0], equal(5), 0.1, (0.1 + 1.8 + 10.0) / 0.8),
        ([1.0, 2.0, 3.0, 4.0, 100.0], equal(5), 0.0, 22.0),
        # by weight: of 0.6 at 10 is left 0.4, of 0.3 at 1 is left 0.1, of 0.1 at 99 nothing but 0
        ([10.0, 1.0, 99.0], [0.6, 0.3, 0.1], 0.2, (0.1 * 1 + 0.5 * 10) / 0.6),
    ],
)
def test_trimmed_mean_by_hand(values: list[float], weights: Any, trim: float, mean: float) -> None:
    rows = np.array(values)[:, None]
    assert centre(TrimmedMeanRule(trim=trim), rows, weights) == pytest.approx([mean])


@pytest.mark.parametrize(
    ("values", "weights", "median"),
    [
        ([3.0, 1.0, 2.0], equal(3), 2.0),
        ([3.0, 1.0, 2.0, 100.0], equal(4), 2.5),
        ([3.0, 1.0, 2.0, 100.0, 0.5, 7.0], equal(6), 2.5),
        ([1.0, 2.0, 3.0], [0.6, 0.2, 0.2], 1.0),
        ([1.0, 2.0, 3.0], [0.1, 0.1, 0.8], 3.0),
        ([1.0, 2.0, 3.0, 4.0], [0.25, 0.25, 0.125, 0.375], 2.5),
    ],
)
def test_weighted_median_by_hand(values: list[float], weights: Any, median: float) -> None:
    assert centre(MedianRule(), np.array(values)[:, None], weights) == pytest.approx([median], rel=1e-6)


def test_an_odd_number_of_values_has_a_median_among_them_bit_for_bit() -> None:
    rows = updates(7, size=500)
    assert (centre(MedianRule(), rows, equal(7)) == np.median(rows, axis=0)).all()


def test_krum_by_hand() -> None:
    rows = np.array([[0.0], [1.0], [2.0], [4.0], [50.0]])  # f = 1: the 2 nearest
    # sums of squares: 0: 1 + 4; 1: 1 + 1; 2: 1 + 4; 4: 4 + 9; 50: 46^2 + 48^2
    assert centre(KrumRule(byzantine=1), rows, equal(5)) == pytest.approx([1.0])
    assert centre(MultiKrumRule(byzantine=1, keep=3), rows, equal(5)) == pytest.approx([1.0])
    assert centre(MultiKrumRule(byzantine=1), rows, equal(5)) == pytest.approx([1.75])
    weighted = [0.1, 0.2, 0.3, 0.2, 0.2]
    assert centre(MultiKrumRule(byzantine=1), rows, weighted) == pytest.approx([(0.2 + 0.6 + 0.8) / 0.8])


def test_krum_needs_two_f_and_three_updates() -> None:
    with pytest.raises(InvalidRequest, match="needs 5 updates with weight, and the round has 4"):
        centre(KrumRule(byzantine=1), updates(4), equal(4))
    config = {"name": "x", "min_clients": 6, "quorum": 4, "aggregation": "krum"}
    with pytest.raises(ValidationError, match="needs 5 updates a round, a quorum is 4"):
        RunConfig.model_validate(config)
    assert RunConfig.model_validate(config | {"quorum": 5}).aggregation == KrumRule()


def test_geometric_median_by_hand() -> None:
    # Fermat's point of an equilateral triangle is its middle; of four corners, where diagonals cross
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])
    assert centre(GeometricMedianRule(), triangle, equal(3)) == pytest.approx(triangle.mean(axis=0), abs=1e-6)
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 1.0]])
    rule = GeometricMedianRule(iterations=5000)
    crossing = [0.8, 0.8]  # of (0, 0)-(4, 4) and (4, 0)-(0, 1)
    assert centre(rule, corners, equal(4)) == pytest.approx(crossing, abs=1e-4)
    # who has more than half of the weight is the median
    assert centre(rule, corners, [0.55, 0.15, 0.15, 0.15]) == pytest.approx([0.0, 0.0], abs=1e-4)


# ---------------------------------------------------------------- a second implementation


def weiszfeld(rows: Rows, weights: Rows, steps: int) -> Rows:
    """In the space of the updates themselves."""
    point = weights @ rows
    for _ in range(steps):
        pulls = weights / np.maximum(np.linalg.norm(rows - point, axis=1), 1e-6)
        point = pulls @ rows / pulls.sum()
    return point


def krum(rows: Rows, byzantine: int) -> int:
    scores = []
    for at, row in enumerate(rows):
        others = sorted(float(((row - other) ** 2).sum()) for place, other in enumerate(rows) if place != at)
        scores.append(sum(others[: len(rows) - byzantine - 2]))
    return scores.index(min(scores))


@pytest.mark.parametrize("seed", range(8))
def test_rules_agree_with_a_second_implementation(seed: int) -> None:
    rows = updates(9, seed)
    weights = np.random.default_rng(seed + 100).dirichlet(np.ones(9))
    found = centre(GeometricMedianRule(iterations=40), rows, weights)
    assert found == pytest.approx(weiszfeld(rows, weights, 40), abs=1e-9)
    assert centre(KrumRule(byzantine=2), rows, weights) == pytest.approx(rows[krum(rows, 2)])
    trimmed = np.sort(rows, axis=0)[2:-2].mean(axis=0)
    assert centre(TrimmedMeanRule(trim=2 / 9), rows, equal(9)) == pytest.approx(trimmed)
    even = updates(8, seed)
    assert centre(MedianRule(), even, equal(8)) == pytest.approx(np.median(even, axis=0), abs=1e-9)


# ---------------------------------------------------------------- laws

sizes = st.lists(st.integers(1, 10**6), min_size=5, max_size=11)


def shares(counts: list[int]) -> Rows:
    return np.array(counts) / sum(counts)


@given(sizes, st.integers(0, 2**31), st.sampled_from(ROBUST), st.randoms(use_true_random=False))
def test_the_order_of_the_updates_does_not_matter(
    counts: list[int], seed: int, rule: VectorRule | CoordinateRule, shuffler: random.Random
) -> None:
    rows, weights = updates(len(counts), seed), shares(counts)
    order = list(range(len(counts)))
    shuffler.shuffle(order)
    same = centre(rule, rows[order], weights[order])
    assert centre(rule, rows, weights) == pytest.approx(same, abs=1e-7)


@given(sizes, st.integers(0, 2**31), st.sampled_from(ROBUST), st.floats(-50, 50))
def test_equal_updates_are_their_own_centre(
    counts: list[int], seed: int, rule: VectorRule | CoordinateRule, shift: float
) -> None:
    rows = np.tile(updates(1, seed) + shift, (len(counts), 1))
    assert centre(rule, rows, shares(counts)) == pytest.approx(rows[0], rel=1e-9, abs=1e-9)


@given(sizes, st.integers(0, 2**31), st.floats(0.01, 100))
def test_centres_scale_with_the_updates(counts: list[int], seed: int, factor: float) -> None:
    rows, weights = updates(len(counts), seed), shares(counts)
    for rule in ROBUST:
        if isinstance(rule, GeometricMedianRule):
            continue  # its smoothing is an absolute distance
        scaled = centre(rule, rows * factor, weights)
        assert scaled == pytest.approx(factor * centre(rule, rows, weights), rel=1e-6, abs=1e-6)


@given(sizes, st.integers(0, 2**31), st.floats(-20, 20))
def test_rules_of_coordinates_move_with_the_updates(counts: list[int], seed: int, shift: float) -> None:
    rows, weights = updates(len(counts), seed), shares(counts)
    for rule in (TrimmedMeanRule(trim=0.3), MedianRule()):
        assert centre(rule, rows + shift, weights) == pytest.approx(
            centre(rule, rows, weights) + shift, abs=1e-7
        )


@given(sizes, st.integers(0, 2**31), st.floats(0, 0.49))
def test_a_trimmed_mean_lies_among_the_values_and_tends_to_the_median(
    counts: list[int], seed: int, trim: float
) -> None:
    rows, weights = updates(len(counts), seed), shares(counts)
    found = centre(TrimmedMeanRule(trim=trim), rows, weights)
    assert (found >= rows.min(axis=0) - 1e-9).all()
    assert (found <= rows.max(axis=0) + 1e-9).all()
    assert centre(TrimmedMeanRule(trim=0.0), rows, weights) == pytest.approx(weights @ rows)
    assert centre(TrimmedMeanRule(trim=0.5 - 2**-20), rows, weights) == pytest.approx(
        centre(MedianRule(), rows, weights)
    )


@given(sizes, st.integers(0, 2**31))
def test_a_vector_rule_gives_shares_of_at_most_one_in_all(counts: list[int], seed: int) -> None:
    rows, weights = updates(len(counts), seed), shares(counts)
    for rule in ROBUST:
        if isinstance(rule, VectorRule):
            found = rule.coefficients(weights, rows @ rows.T)
            assert (found >= 0).all()
            assert found.sum() <= 1 + 1e-9


# ---------------------------------------------------------------- a liar


@pytest.mark.parametrize("lie", [1e3, -1e3, 1e6], ids=str)
@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.kind)
def test_one_liar_of_ten_does_not_move_a_robust_centre_far(
    rule: VectorRule | CoordinateRule, lie: float
) -> None:
    honest = 1.0 + 0.1 * updates(9, seed=3, size=50)
    rows = np.vstack([honest, lie * honest[:1]])
    distance = float(np.linalg.norm(centre(rule, rows, equal(10)) - honest.mean(axis=0)))
    spread = float(np.linalg.norm(honest - honest.mean(axis=0), axis=1).max())
    is_clipped = isinstance(rule, ClippedRule)
    allowed = 0.25 * float(np.linalg.norm(honest[0])) if is_clipped else 1.1 * spread
    assert distance < allowed
    mean = np.linalg.norm(rows.mean(axis=0) - honest.mean(axis=0))
    assert mean > 50 * spread, "the mean goes where the liar wants"


def test_whoever_has_half_of_the_weight_decides_which_is_what_the_cap_is_for() -> None:
    rows = np.vstack([updates(4), 1e6 * np.ones((1, 7))])
    heavy = [0.1, 0.1, 0.1, 0.1, 0.6]
    capped = [0.2] * 5
    for rule in (MedianRule(), GeometricMedianRule()):
        assert np.abs(centre(rule, rows, heavy)).max() > 1e5
        assert np.abs(centre(rule, rows, capped)).max() < 10


@given(st.floats(1e-3, 1e12))
def test_the_norm_of_a_clipped_sum_is_bounded(scale: float) -> None:
    rows = np.vstack([updates(4), scale * np.ones((1, 7))])
    assume(np.isfinite(rows).all())
    assert np.linalg.norm(centre(ClippedRule(norm=2.0), rows, equal(5))) <= 2.0 * (1 + 1e-9)


# ---------------------------------------------------------------- in a configuration


def test_a_rule_by_its_name_or_with_options() -> None:
    parse = TypeAdapter(AnyRule).validate_python
    assert parse("mean") == MeanRule()
    assert parse("geometric-median") == GeometricMedianRule()
    assert parse({"kind": "trimmed-mean", "trim": 0.1}) == TrimmedMeanRule(trim=0.1)
    for wrong in ("average", {"kind": "trimmed-mean", "trim": 0.5}, {"kind": "krum", "keep": 2}):
        with pytest.raises(ValidationError):
            parse(wrong)
