"""Each bound against all counts with at most 12 examples and 4 classes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from shared.config import Metric
from shared.discrepancy import Target, discrepancy, largest
from shared.problems import InvalidConfiguration
from worker.candidates import partitions
from worker.noise import make_laplace, make_noise, sensitivity

SIZES = range(1, 13)
TARGETS: dict[int, list[Target]] = {
    2: ["uniform", (0.9, 0.1), (1, 3)],
    3: ["uniform", (0.5, 0.3, 0.2), (1, 1, 8)],
    4: ["uniform", (0.4, 0.3, 0.2, 0.1), (0.01, 0.01, 0.01, 0.97)],
}
METRICS: list[Metric] = ["kl", "l1", "l2", "cosine"]


def _counts(examples: int, classes: int) -> list[tuple[int, ...]]:
    rows = partitions(examples, classes, ordered=True)
    assert rows is not None
    assert len(rows) == math.comb(examples + classes - 1, classes - 1)
    return [tuple(map(int, row)) for row in rows]


def _neighbours(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for source, goal in itertools.permutations(range(len(counts)), 2):
        if counts[source]:
            moved = list(counts)
            moved[source] -= 1
            moved[goal] += 1
            yield tuple(moved)


def _largest_change(metric: Metric, target: Target, classes: int, examples: int) -> float:
    value = {counts: discrepancy(counts, target, metric) for counts in _counts(examples, classes)}
    return max(abs(value[a] - value[b]) for a in value for b in _neighbours(a))


CASES = [
    (metric, classes, target) for metric in METRICS for classes in TARGETS for target in TARGETS[classes]
]


@pytest.mark.parametrize(("metric", "classes", "target"), CASES)
def test_no_neighbour_is_farther_than_the_bound(metric: Metric, classes: int, target: Target) -> None:
    for examples in SIZES:
        bound = sensitivity(metric, target, classes, examples)
        assert _largest_change(metric, target, classes, examples) <= bound * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("classes", TARGETS)
def test_the_bound_of_kl_to_uniform_is_reached(classes: int) -> None:
    for examples in SIZES:
        change = _largest_change("kl", "uniform", classes, examples)
        assert change == pytest.approx(sensitivity("kl", "uniform", classes, examples), abs=1e-12)


def test_the_bound_of_kl_to_a_target_is_reached_where_the_rarest_class_meets_the_commonest() -> None:
    change = _largest_change("kl", (0.9, 0.1), 2, 10)
    assert change == pytest.approx(sensitivity("kl", (0.9, 0.1), 2, 10), abs=1e-12)


def test_the_bounds_of_l1_and_l2_are_reached() -> None:
    assert _largest_change("l1", (0.9, 0.1), 2, 10) == pytest.approx(2 / 10)
    assert _largest_change("l2", (0.9, 0.1), 2, 10) == pytest.approx(math.sqrt(2) / 10)


@pytest.mark.parametrize(("metric", "classes", "target"), CASES)
def test_the_range_ends_where_it_says(metric: Metric, classes: int, target: Target) -> None:
    found = [discrepancy(counts, target, metric) for counts in _counts(6, classes)]
    assert max(found) == pytest.approx(largest(metric, target, classes), abs=1e-12)


@pytest.mark.parametrize(("examples", "published"), [(260, 0.0252), (5000, 0.0019)])
def test_the_sensitivity_at_two_sizes(examples: int, published: float) -> None:
    assert sensitivity("kl", "uniform", 10, examples) == pytest.approx(published, abs=5e-5)


def test_a_target_with_an_empty_class_has_no_bound() -> None:
    with pytest.raises(InvalidConfiguration, match="share 0"):
        sensitivity("kl", (0.5, 0.5, 0), 3, 100)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("metric", METRICS)
def test_rounding_to_the_grid_is_in_the_steps(metric: Metric, classes: int) -> None:
    for examples in SIZES:
        noise = make_noise(sensitivity(metric, "uniform", classes, examples), 1.0)
        assert math.frexp(noise.grid)[0] == 0.5  # a power of two
        step = {c: round(discrepancy(c, "uniform", metric) / noise.grid) for c in _counts(examples, classes)}
        assert max(abs(step[a] - step[b]) for a in step for b in _neighbours(a)) <= noise.steps


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 2.5])
def test_the_library_confirms_epsilon(epsilon: float) -> None:
    noise = make_noise(sensitivity("kl", "uniform", 10, 260), epsilon)
    laplace: Any = make_laplace(noise.scale)
    spent = laplace.map(noise.steps)
    assert 0.999 * epsilon < spent <= epsilon


def test_the_noise_has_the_width_it_says_and_lies_on_the_grid() -> None:
    noise = make_noise(0.0252, 1.0)
    drawn = np.array([noise.add(1.0) for _ in range(4000)])
    assert np.all(drawn / noise.grid == np.round(drawn / noise.grid))
    # 95 per cent inside; 4,000 draws have a standard error of 0.34 per cent
    assert abs(np.mean(np.abs(drawn - 1.0) <= noise.half_width) - 0.95) < 0.02
    assert abs(np.mean(drawn) - 1.0) < 5 * 0.0252 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
def test_partitions_come_once_each(kind: Literal["ordered", "unordered"]) -> None:
    rows = partitions(9, 3, ordered=kind == "ordered")
    assert rows is not None
    expected = {
        tuple(c) if kind == "ordered" else tuple(sorted(c))
        for c in itertools.product(range(10), repeat=3)
        if sum(c) == 9
    }
    assert len(rows) == len(expected)
    assert {tuple(map(int, row)) for row in rows} == expected


def test_too_many_partitions_are_not_made() -> None:
    assert partitions(5000, 10, ordered=False) is None
