"""The cap on weights: exact values by hand, and the laws of water-filling."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.capping import cap_ledger, cap_weights, is_feasible
from shared.weightings import Contribution, ledger
from shared.weightings.sizes import SizesWeighting

HONEST = [Contribution(index, size, None) for index, size in enumerate((500, 300, 200))]


@pytest.mark.parametrize(
    ("weights", "largest", "capped"),
    [
        ([0.5, 0.25, 0.25], 0.4, [0.4, 0.3, 0.3]),
        # 0.6 is cut, then 0.3 x 0.6/0.4 = 0.45 is above 0.4 too: 1 - 2 x 0.4 is left to 0.1
        ([0.6, 0.3, 0.1], 0.4, [0.4, 0.4, 0.2]),
        ([0.1, 0.6, 0.3], 0.4, [0.2, 0.4, 0.4]),
        ([1.0, 0.0, 0.0], 0.4, [1.0, 0.0, 0.0]),  # nobody else has a weight: not feasible
        ([0.7, 0.3], 0.4, [0.5, 0.5]),  # not feasible: equal
        ([0.7, 0.2, 0.1, 0.0], 1 / 3, [1 / 3, 1 / 3, 1 / 3, 0.0]),  # feasible to the last digit
        ([0.0, 0.0], 0.4, [0.0, 0.0]),
        ([], 0.4, []),
    ],
)
def test_capped_weights_by_hand(weights: list[float], largest: float, capped: list[float]) -> None:
    assert cap_weights(weights, largest) == pytest.approx(capped, abs=1e-15)


rounds = st.lists(st.integers(0, 10**9), min_size=1, max_size=12).filter(any)
caps = st.floats(0.01, 1.0)


def shares(sizes: list[int]) -> list[float]:
    return [size / sum(sizes) for size in sizes]


@given(rounds, caps)
def test_capped_weights_sum_to_one_and_keep_the_cap_where_that_is_possible(
    sizes: list[int], largest: float
) -> None:
    capped = cap_weights(shares(sizes), largest)
    weighed = sum(size > 0 for size in sizes)
    assert math.fsum(capped) == pytest.approx(1, abs=1e-12)
    limit = largest if is_feasible(weighed, largest) else 1 / weighed
    assert max(capped) <= limit * (1 + 1e-12)
    assert [weight > 0 for weight in capped] == [size > 0 for size in sizes]


@given(rounds, caps)
def test_those_below_the_cap_keep_their_ratios_and_the_order_stays(sizes: list[int], largest: float) -> None:
    given_weights = shares(sizes)
    capped = cap_weights(given_weights, largest)
    assume(is_feasible(sum(size > 0 for size in sizes), largest))
    factors = [after / before for before, after in zip(given_weights, capped, strict=True) if before]
    free = [factor for factor, after in zip(factors, filter(None, capped), strict=True) if after < largest]
    assert max(free, default=1) == pytest.approx(min(free, default=1))
    assert all(factor <= max(free, default=math.inf) * (1 + 1e-12) for factor in factors)
    pairs = sorted(zip(given_weights, capped, strict=True))
    assert [after for _, after in pairs] == sorted(after for _, after in pairs)


@given(rounds, caps, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_no_bit(
    sizes: list[int], largest: float, shuffler: random.Random
) -> None:
    order = list(range(len(sizes)))
    shuffler.shuffle(order)
    weights = shares(sizes)
    capped = cap_weights(weights, largest)
    assert cap_weights([weights[at] for at in order], largest) == [capped[at] for at in order]


@given(rounds, caps)
def test_capping_twice_changes_nothing(sizes: list[int], largest: float) -> None:
    once = cap_weights(shares(sizes), largest)
    assert cap_weights(once, largest) == pytest.approx(once, abs=1e-15)


def test_a_cap_that_binds_nobody_changes_no_bit() -> None:
    weights = shares([500, 300, 200])
    assert cap_weights(weights, 0.5) == weights


def test_without_a_cap_the_ledger_stays_as_it_is() -> None:
    rows = ledger(SizesWeighting(), HONEST, HONEST)
    assert cap_ledger(rows, None) == rows


def test_c1_a_client_with_2_to_the_53_examples_weighs_no_more_than_the_cap() -> None:
    liar = Contribution(3, 2**53, None)
    rows = cap_ledger(ledger(SizesWeighting(), [*HONEST, liar], []), 0.3)
    assert [row.weight for row in rows] == pytest.approx([0.3, 0.24, 0.16, 0.3])
    assert rows[3].uncapped_weight == pytest.approx(1)
    rows = cap_ledger(ledger(SizesWeighting(), [*HONEST, liar], []), 0.4)
    assert [row.weight for row in rows] == pytest.approx([0.3, 0.18, 0.12, 0.4])
