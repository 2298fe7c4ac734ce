"""How far a client's labels are from the target: the one number ``d_k`` that it discloses.

Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023,
section 4. The direction is local against target, ``KL(D_k || T)``, so that a class of which a
client has no example adds nothing (the reverse would be infinite).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.own_parts import import_part, is_own
from shared.problems import InvalidConfiguration, InvalidRequest
from shared.vocabulary import AnyMetric, Metric

__all__ = ["AnyMetric", "Metric", "Target", "check_possible", "discrepancy", "largest", "shares"]

Target = Literal["uniform"] | Sequence[float]
Distribution = NDArray[np.float64]
_ROUNDING = 1e-9


def discrepancy(
    counts: Sequence[float] | NDArray[np.float64] | NDArray[np.int64],
    target: Literal["uniform"] | Sequence[float],
    metric: AnyMetric = "kl",
) -> float:
    """Distance of a client's label distribution from the target, 0 or more.

    ``counts`` has one entry a class of the run's contract, in its order; counts and target need not
    sum to one. ``kl`` uses the natural logarithm (at most ln C for a uniform target) and is ``inf`` where
    the client holds a class whose target share is 0. ``l1`` has no factor 1/2, ``l2`` is not squared,
    ``cosine`` is 1 - cos. One's own is called with the two distributions, and gives a finite number.

    Raises InvalidRequest for counts that are negative, not finite or all zero, and InvalidConfiguration
    for such a target, one of another length, an unknown metric, or one's own that gives something else.

    >>> discrepancy([5, 5, 0, 0], "uniform")
    0.6931471805599453
    """
    if isinstance(target, str) and target != "uniform":
        raise InvalidConfiguration(f"the target {target!r} is no distribution: give one share a class")
    local = _distribution(counts, "the counts", InvalidRequest)
    wanted = (
        np.full(len(local), 1 / len(local))
        if isinstance(target, str)
        else _distribution(target, "the target", InvalidConfiguration)
    )
    if len(wanted) != len(local):
        raise InvalidConfiguration(
            f"the target has {len(wanted)} shares for {len(local)} classes",
            hint="Give one share a class, in the order of the class contract.",
        )
    if is_own(metric):
        return _measure_by(metric, local, wanted)
    if metric not in _METRICS:
        raise InvalidConfiguration(f"metric {metric!r} is none of {', '.join(_METRICS)}")
    return max(0.0, _METRICS[metric](local, wanted))


def shares(target: Target, classes: int) -> list[float]:
    """The target as shares that sum to one."""
    if isinstance(target, str):
        return [1 / classes] * classes
    whole = math.fsum(target)
    return [share / whole for share in target]


def largest(metric: AnyMetric, target: Target, classes: int) -> float:
    """The upper end of the metric's range: that of a client with the rarest class of the target alone.

    All four are convex in the client's shares p, or (cosine) least similar where p has one class: for any p,
    ``<p, q> >= min q`` and ``|p| <= 1``. So the end is reached at p = e_i with the smallest q_i:

    * ``kl``: -ln q_i; of the classes with a share (a client that holds another is infinitely far);
    * ``l1``: 2 (1 - q_i);  ``l2``: sqrt(1 - 2 q_i + |q|^2);  ``cosine``: 1 - q_i / |q|.

    Of one's own nothing is known: it is infinite.

    >>> round(largest("kl", "uniform", 10), 6), round(math.log(10), 6)
    (2.302585, 2.302585)
    """
    if is_own(metric):
        return math.inf
    wanted = shares(target, classes)
    least = min(wanted)
    if metric == "l1":
        return 2 * (1 - least)
    squares = math.fsum(share * share for share in wanted)
    if metric == "l2":
        return math.sqrt(1 - 2 * least + squares)
    if metric == "cosine":
        return 1 - least / math.sqrt(squares)
    return -math.log(min(share for share in wanted if share > 0))


def check_possible(value: float, metric: AnyMetric, target: Target, classes: int) -> None:
    """Raise InvalidRequest for a discrepancy that no labels of ``classes`` classes can have."""
    if math.isinf(value):
        if metric == "kl" and min(shares(target, classes)) == 0:
            return
        raise InvalidRequest(
            f"the discrepancy is infinite, but no labels are infinitely far from the target by {metric}",
            hint="Compute it from the labels with the metric and the target of the assignment.",
        )
    end = largest(metric, target, classes)
    if not value <= end * (1 + _ROUNDING):
        raise InvalidRequest(
            f"the discrepancy {value:g} is above {end:.6g}, the largest that labels of {classes} classes can "
            f"have by {metric}",
            hint="Compute it from the labels with the metric and the target of the assignment.",
        )


def _distribution(
    values: Sequence[float] | NDArray[np.float64] | NDArray[np.int64], what: str, error: type[InvalidRequest]
) -> Distribution:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise error(f"{what}: one number a class is needed, received shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if len(bad):
        raise error(f"{what}: class {bad[0]} has {array[bad[0]]}, not a finite number of 0 or more")
    largest = array.max()
    if largest == 0:
        raise error(f"{what}: all {len(array)} classes have 0", hint="No examples, no distribution.")
    scaled: Distribution = array / largest  # so that no sum overflows
    scaled /= math.fsum(scaled)
    return scaled


def _measure_by(path: str, local: Distribution, wanted: Distribution) -> float:
    found = import_part("weighting.metric", path)(local, wanted)
    try:
        value = float(found)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidConfiguration(
            f"weighting.metric: {path!r} gave {str(found)[:100]!r}, not a finite number of 0 or more"
        )
    return value


def _kl(local: Distribution, target: Distribution) -> float:
    held = local > 0
    if np.any(target[held] == 0):
        return math.inf
    # The difference of logarithms: the quotient could overflow for a tiny target share.
    return math.fsum(local[held] * (np.log(local[held]) - np.log(target[held])))


def _l1(local: Distribution, target: Distribution) -> float:
    return math.fsum(np.abs(local - target))


def _l2(local: Distribution, target: Distribution) -> float:
    return math.sqrt(math.fsum((local - target) ** 2))


def _cosine(local: Distribution, target: Distribution) -> float:
    norms = math.sqrt(math.fsum(local**2)) * math.sqrt(math.fsum(target**2))
    return 1.0 - math.fsum(local * target) / norms


_METRICS: dict[str, Callable[[Distribution, Distribution], float]] = {
    "kl": _kl,
    "l1": _l1,
    "l2": _l2,
    "cosine": _cosine,
}
