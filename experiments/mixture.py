"""What a round's models were trained on: how far the mix of its clients' labels is from uniform.

With partial participation a round's accuracy follows the Kullback-Leibler divergence of ``sum p_k D_k`` from
the uniform distribution, where ``p_k`` are the round's weights and ``D_k`` its clients' shares of each class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.records import Curve
from shared import statistics
from shared.config import Partition
from shared.data.partition import partition

__all__ = ["Mixture", "class_shares", "divergences", "is_mixed", "mixture"]

STILL = 1e-9
"""A smaller deviation is rounding."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Of a run after the warm-up: mean divergence (nats), and what goes with a round's accuracy.

    ``slope`` is in points of accuracy for each nat; ``with_divergence`` and ``with_unbiased`` are
    correlations, NaN where nothing varies.
    """

    divergence: float
    slope: float
    with_divergence: float
    with_unbiased: float


def is_mixed(curve: Curve) -> bool:
    """Whether the run draws some of biased and unbiased clients, and has rounds after the warm-up."""
    spec, drawn = curve.config.partition, curve.config.clients_per_round
    if spec is None or drawn is None or not 0 < spec.unbiased < spec.clients:
        return False
    return spec.kind == "niid2" and len(curve.rounds) >= statistics.WARM_UP + statistics.LAST


def mixture(curve: Curve) -> Mixture:
    """See :class:`Mixture`; for a curve that :func:`is_mixed`."""
    spec = curve.config.partition
    assert spec is not None
    rounds = curve.rounds[statistics.WARM_UP :]
    found = np.array(divergences(curve)[statistics.WARM_UP :])
    accuracies = np.array([100 * (line.accuracy or 0.0) for line in rounds])
    first = spec.clients - spec.unbiased
    unbiased = np.array([sum(index >= first for index in line.participants) for line in rounds], dtype=float)
    correlation = _correlation(found, accuracies)
    return Mixture(
        divergence=float(found.mean()),
        slope=math.nan if math.isnan(correlation) else float(correlation * accuracies.std() / found.std()),
        with_divergence=correlation,
        with_unbiased=_correlation(unbiased, accuracies),
    )


def divergences(curve: Curve) -> list[float]:
    """``KL(sum p_k D_k || uniform)`` of each round, in nats."""
    assert curve.config.partition is not None
    shares = class_shares(curve.config.partition, len(curve.categories))
    return [
        _from_uniform(np.array(line.weights) @ shares[list(line.participants)] / sum(line.weights))
        for line in curve.rounds
    ]


def class_shares(spec: Partition, classes: int) -> Matrix:
    """Each NIID-2 client's share of each class, shape (clients, classes), whatever the data set's size."""
    targets = np.tile(np.arange(classes), 10 * spec.clients)
    whole = spec.model_copy(update={"validation": 0, "held_out": 0.0})
    counts = [np.bincount(targets[part], minlength=classes) for part in partition(whole, targets, classes, 0)]
    return np.array([count / count.sum() for count in counts])


def _from_uniform(shares: Matrix) -> float:
    positive = shares[shares > 0]
    return float((positive * np.log(positive * len(shares))).sum())


def _correlation(one: Matrix, other: Matrix) -> float:
    if min(one.std(), other.std()) < STILL:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])
