"""Differential privacy of one discrepancy: how far one label can move it, and exact noise of that size.

Neighbours are data sets of one size n that differ in the label of one example. The laws that the bounds
follow from stand beside them; ``tests/worker/test_noise.py`` compares every bound with all counts up to
n = 12 and four classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.config import AnyMetric
from shared.discrepancy import Target, shares
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from opendp.mod import Measurement

__all__ = ["LaplaceNoise", "make_laplace", "make_noise", "sensitivity"]

_STEPS = 1024  # of the grid in one sensitivity: rounding then adds less than 0.2 per cent to the noise
_ROOM = 1 + 2.0**-40  # above the rounding of scale and quotient, so that epsilon is an upper bound
_INSIDE = math.log(20)  # |Laplace(1)| is below ln 20 in 95 per cent of all draws


def sensitivity(metric: AnyMetric, target: Target, classes: int, examples: int) -> float:
    """The most that the label of one of ``examples`` (1 or more) examples changes the discrepancy.

    * ``kl``, uniform: d = ln C - H(p), and -x ln x is concave, so the largest step is from one class alone
      to one example outside it. Another target adds ``(ln q_i - ln q_j) / n`` for a label moved from j to i.
    * ``l1``, ``l2``: the distance moves by at most the distance between the two shares, by the triangle
      inequality: 2/n and sqrt(2)/n.
    * ``cosine``: vectors a and b have directions at most 2|a - b| / (|a| + |b|) apart (Kirk and Smiley,
      1964, in an inner product space); |a - b| is sqrt(2) here, and counts of C classes are at least
      n / sqrt(C) long.

    Raises :class:`InvalidConfiguration` for ``kl`` to a target with a share of 0, where d may be infinite,
    and for a metric of one's own, of which no bound is known.
    """
    if is_own(metric):
        raise InvalidConfiguration(f"no bound is known of the metric {metric!r}, so no noise hides a label")
    n = examples
    if metric == "l1":
        return 2 / n
    if metric == "l2":
        return math.sqrt(2) / n
    if metric == "cosine":
        return min(1.0, math.sqrt(2 * classes) / n)
    entropy = (n - 1) / n * math.log(n / (n - 1)) + math.log(n) / n if n > 1 else 0.0
    wanted = shares(target, classes)
    if min(wanted) == 0:
        raise InvalidConfiguration("the target has a class of share 0: the discrepancy has no bound")
    return entropy + (math.log(max(wanted)) - math.log(min(wanted))) / n


@dataclass(frozen=True)
class LaplaceNoise:
    """Discrete Laplace noise on multiples of ``grid``, a power of two; ``scale`` is in those steps.

    Two neighbours are at most ``steps`` apart after rounding, one more than their distance before it.
    """

    grid: float
    steps: int
    scale: float

    @property
    def half_width(self) -> float:
        """Half the interval around an answer in which 95 per cent of the noise lies."""
        return _INSIDE * self.scale * self.grid

    def add(self, value: float) -> float:
        """``value`` on the grid, noised. OpenDP samples exactly, with the operating system's randomness."""
        return float(make_laplace(self.scale)(round(value / self.grid)) * self.grid)


def make_laplace(scale: float) -> Measurement:
    """The mechanism on whole numbers; its ``map`` gives the epsilon of a sensitivity."""
    # only where a discrepancy is noised; not opendp.prelude, which imports scikit-learn as well
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    numbers, distance = domains.atom_domain(T="i64"), metrics.absolute_distance(T="i64")
    return measurements.make_laplace(numbers, distance, scale=scale)


def make_noise(sensitivity: float, epsilon: float) -> LaplaceNoise:
    """Noise that makes an answer of this sensitivity epsilon-differentially private."""
    widest = max(sensitivity, 2.0**-40)
    grid = 2.0 ** math.floor(math.log2(widest / _STEPS))
    steps = math.ceil(sensitivity / grid) + 1
    return LaplaceNoise(grid=grid, steps=steps, scale=steps / epsilon * _ROOM)
