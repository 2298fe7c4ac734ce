"""What is said about curves, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.statistics import (
    Interval,
    Spread,
    after_warm_up,
    best,
    bootstrap,
    client_variance,
    group_means,
    last_ten,
    mean_and_deviation,
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
    assert rounds_to(curve, 0.55) == 1  # counted from 0, as in the paper
    assert rounds_to(curve, 0.3) == 0
    assert rounds_to(curve, 0.61) is None


def test_the_variance_between_clients_is_in_points_squared() -> None:
    assert client_variance([0.6, 0.6]) == 0
    assert client_variance([0.5, 0.6, 0.7]) == pytest.approx(200 / 3)


def test_groups_of_the_papers_ten_categories() -> None:
    head, middle, tail = group_means([0.9] * 4 + [0.6] * 3 + [0.1, 0.2, 0.3])
    assert (head, middle, tail) == pytest.approx((0.9, 0.6, 0.2))
    with pytest.raises(ValueError, match="do not make 9 categories"):
        group_means([0.5] * 9)


def test_the_interval_of_equal_differences_is_a_point() -> None:
    assert bootstrap([[2.0] * 80, [2.0] * 30]) == Interval(2.0, 2.0)
    with pytest.raises(ValueError, match="no rounds"):
        bootstrap([[1.0], []])


def test_the_interval_holds_the_mean_and_is_always_the_same() -> None:
    rounds = [math.sin(number) for number in range(80)]
    found = bootstrap([rounds])
    assert found == bootstrap([rounds])
    assert found.low < math.fsum(rounds) / 80 < found.high


def test_the_interval_knows_rounds_and_seeds() -> None:
    random = np.random.RandomState(7)
    noise = random.normal(0, 3, (3, 80))
    one = bootstrap([list(5 + noise[0])])
    # independent rounds: about 1.96 standard errors on either side
    assert (one.high - one.low) / 2 == pytest.approx(1.96 * noise[0].std() / math.sqrt(80), rel=0.35)
    apart = bootstrap([list(mean + row) for mean, row in zip((2, 5, 8), noise, strict=True)])
    assert apart.high - apart.low > 3 * (one.high - one.low)  # what differs by seed counts, too
    alike = bootstrap([[*([1.0] * 40), *([-1.0] * 40)]])
    mixed = bootstrap([[1.0, -1.0] * 40])
    assert alike.high - alike.low > 3 * (mixed.high - mixed.low)  # neighbouring rounds are drawn together


@given(st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=40), min_size=1, max_size=4))
def test_the_interval_lies_within_what_was_measured(by_seed: list[list[float]]) -> None:
    found = bootstrap(by_seed)
    lowest, highest = min(map(min, by_seed)), max(map(max, by_seed))
    assert lowest - 1e-6 <= found.low <= found.high <= highest + 1e-6
    mirrored = bootstrap([[-value for value in rounds] for rounds in by_seed])
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low), abs=1e-6)


def test_the_warm_up_is_left_out_where_ten_rounds_remain() -> None:
    assert after_warm_up(range(1, 101))[0] == 21
    assert list(after_warm_up(range(1, 31))) == list(range(21, 31))
    assert list(after_warm_up(range(1, 30))) == list(range(1, 30))
