"""How far the mix of a round's labels is from uniform, on federations small enough for the head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from experiments.mixture import class_shares, divergences, is_mixed, mixture
from experiments.records import Curve, Round
from shared.config import Partition, RunConfig

CLASSES = tuple("abcdefghij")


def curve(draws: Sequence[tuple[int, ...]], accuracies: list[float], partition: str = "niid2:5+1") -> Curve:
    """Every participant weighs the same."""
    config = RunConfig(name="r", partition=Partition.model_validate(partition), clients_per_round=2)
    rounds = [
        Round(number, accuracy, None, (), (), None, drawn, (1 / len(drawn),) * len(drawn))
        for number, (drawn, accuracy) in enumerate(zip(draws, accuracies, strict=True), start=1)
    ]
    return Curve(config, {}, "", CLASSES, tuple(rounds))


def test_shares_of_the_classes_follow_from_the_partition_alone() -> None:
    shares = class_shares(Partition.model_validate("niid2:5+1"), 10)
    assert shares[1].tolist() == [0, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 0]
    assert shares[5] == pytest.approx(0.1)
    held = Partition(kind="niid2", clients=6, unbiased=1, validation=5000)
    assert np.array_equal(class_shares(held, 10), shares)


def test_the_divergence_of_a_round() -> None:
    found = divergences(curve([(0,), (5,), (0, 1), (0, 1, 2, 3, 4)], [0.0] * 4))
    assert found == pytest.approx([math.log(5), 0, math.log(2.5), 0], abs=1e-12)


def test_what_accuracy_goes_with() -> None:
    draws = [(0, 1) if number % 2 else (0, 5) for number in range(40)]
    divergence = divergences(curve(draws, [0.5] * 40))
    scores = [(60 - 40 * each) / 100 for each in divergence]
    found = mixture(curve(draws, scores))
    assert found.slope == pytest.approx(-40)
    assert found.with_divergence == pytest.approx(-1)
    assert found.with_unbiased == pytest.approx(1)
    assert found.divergence == pytest.approx(sum(divergence[20:]) / 20)
    still = mixture(curve([(0, 1)] * 40, scores))
    assert all(math.isnan(value) for value in (still.slope, still.with_divergence, still.with_unbiased))


@pytest.mark.parametrize(
    ("partition", "rounds", "mixed"),
    [("niid2:5+1", 30, True), ("niid2:5+1", 29, False), ("niid2:5+0", 30, False), ("iid:6", 30, False)],
)
def test_only_draws_of_biased_and_unbiased_clients_are_mixed(
    partition: str, rounds: int, mixed: bool
) -> None:
    assert is_mixed(curve([(0, 1)] * rounds, [0.5] * rounds, partition)) == mixed
