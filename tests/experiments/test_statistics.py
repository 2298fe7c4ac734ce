"""What is said about curves, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from experiments.statistics import (
    Spread,
    best,
    client_variance,
    group_means,
    last_ten,
    mean_and_deviation,
    paired_gain,
    rounds_to,
)


def test_mean_and_sample_deviation() -> None:
    assert mean_and_deviation([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == Spread(5.0, math.sqrt(32 / 7), 8)
    assert mean_and_deviation([3.0]) == Spread(3.0, None, 1)
    with pytest.raises(ValueError, match="no values"):
        mean_and_deviation([])


def test_the_last_ten_are_the_last_ten() -> None:
    assert last_ten([100.0, *([1.0] * 10)]) == Spread(1.0, 0.0, 10)
    assert last_ten([1.0, 2.0]).count == 2


def test_best_and_first_round_at_the_target() -> None:
    curve = [0.3, 0.55, 0.5, 0.6]
    assert best(curve) == 0.6
    assert rounds_to(curve, 0.55) == 2
    assert rounds_to(curve, 0.61) is None


def test_the_variance_between_clients_is_in_points_squared() -> None:
    assert client_variance([0.6, 0.6]) == 0
    assert client_variance([0.5, 0.6, 0.7]) == pytest.approx(200 / 3)


def test_groups_of_the_papers_ten_categories() -> None:
    head, middle, tail = group_means([0.9] * 4 + [0.6] * 3 + [0.1, 0.2, 0.3])
    assert (head, middle, tail) == pytest.approx((0.9, 0.6, 0.2))
    with pytest.raises(ValueError, match="do not make 9 categories"):
        group_means([0.5] * 9)


def test_gains_are_paired_by_seed() -> None:
    gain = paired_gain({0: 50.0, 1: 60.0, 2: 99.0}, {0: 52.0, 1: 61.0, 3: 0.0})
    assert gain == Spread(1.5, pytest.approx(math.sqrt(0.5)), 2)
    assert paired_gain({0: 1.0}, {1: 2.0}) is None
