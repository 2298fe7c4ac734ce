"""Several evaluators' scores as one: between theirs, whatever they are, and the same bits in any order."""

from __future__ import annotations

import math
import random
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.config import ScoreRule
from shared.scores import summarise, weighted_mean

LARGEST = sys.float_info.max
RULES: tuple[ScoreRule, ...] = ("median", "weighted")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCORES = st.lists(st.tuples(NUMBERS, st.integers(1, 2**53)), min_size=1, max_size=6)


@given(scores=SCORES, rule=st.sampled_from(RULES), seed=st.integers())
def test_one_score_lies_between_the_scores_in_any_order(
    scores: list[tuple[float, int]], rule: ScoreRule, seed: int
) -> None:
    found = summarise(scores, rule)
    values = [value for value, _ in scores]
    assert min(values) <= found * (1 + 1e-15) or found == pytest.approx(min(values))
    assert max(values) >= found * (1 - 1e-15) or found == pytest.approx(max(values))
    assert math.isfinite(found)
    assert summarise(random.Random(seed).sample(scores, len(scores)), rule) == found


@pytest.mark.parametrize(
    ("scores", "rule", "expected"),
    [
        ([(1e308, 1), (-1e308, 1), (0.5, 1)], "weighted", 0.5 / 3),
        ([(1e308, 1), (1e308, 1)], "weighted", 1e308),
        ([(LARGEST, 2**53), (LARGEST, 1)], "weighted", LARGEST),
        ([(1e308, 3), (-1e308, 1)], "weighted", 5e307),
        ([(1e308, 1), (1.5e308, 1)], "median", 1.25e308),
        ([(-LARGEST, 1), (LARGEST, 1)], "median", 0.0),
    ],
)
def test_scores_beyond_what_floats_can_add(
    scores: list[tuple[float, int]], rule: ScoreRule, expected: float
) -> None:
    assert summarise(scores, rule) == expected


@given(scores=st.lists(st.tuples(st.floats(-1e100, 1e100), st.integers(1, 2**40)), min_size=2, max_size=6))
def test_what_floats_can_add_keeps_its_bits(scores: list[tuple[float, int]]) -> None:
    """Runs went by these numbers before: their ledgers are replayed."""
    values = [value for value, _ in scores]
    assert summarise(scores, "median") == statistics.median(values)
    mean = math.fsum(value * examples for value, examples in scores) / sum(n for _, n in scores)
    assert summarise(scores, "weighted") == mean


def test_what_is_not_finite_stays_so() -> None:
    assert weighted_mean([(math.inf, 1), (1.0, 1)]) == math.inf
    assert math.isnan(weighted_mean([(math.inf, 1), (-math.inf, 1)]))
