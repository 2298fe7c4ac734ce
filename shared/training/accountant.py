"""What private training costs: epsilon of the noise that was added, and the noise for an epsilon.

Renyi differential privacy of the Gaussian mechanism on Poisson samples (Mironov, Talwar and Zhang, 2019,
arXiv:1908.10530), composed over everything that was trained and converted by theorem 21 of Balle et al.
(2020, arXiv:1905.09982). The hard part, the Renyi divergence, is Opacus's. Its own conversion warns where an
order at the end of the list is the best, and ``warnings`` is no tool for a thread of a service; ours is the
same formula over more orders.

Neighbours are data sets of which one has one example more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.privacy import LARGEST_EPSILON
from shared.problems import InvalidConfiguration

__all__ = ["Spending", "check_epsilon", "find_epsilon", "find_noise"]

ORDERS: Final = (
    *(1 + step / 10 for step in range(1, 100)),
    *(float(order) for order in range(12, 65)),
    *(80.0, 96.0, 128.0, 160.0, 192.0, 256.0, 384.0, 512.0),
)
"""Opacus's default orders, and larger ones for small epsilons."""
_MOST_NOISE = 2.0**14
_PRECISION = 1e-3


@dataclass(frozen=True)
class Spending:
    """``steps`` noised sums of gradients, of samples that hold each example with probability ``rate``."""

    noise_multiplier: float
    rate: float
    steps: int


def find_epsilon(spent: Iterable[Spending], delta: float) -> float:
    """The privacy loss of one example in all of ``spent`` together; 0 if nothing was trained.

    Raises :class:`InvalidConfiguration` if Opacus is not installed.
    """
    parts = [part for part in spent if part.steps and part.rate]
    if not parts:
        return 0.0
    total = sum((part.steps * _divergences(part.noise_multiplier, part.rate) for part in parts), _NOTHING)
    orders = np.array(ORDERS)
    found = total - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(np.min(found)))


def find_noise(
    epsilon: float, delta: float, rate: float, steps: int, spent: Iterable[Spending] = ()
) -> float:
    """The least noise multiplier, to 0.1 %, with which ``steps`` after ``spent`` lose ``epsilon`` in all.

    Raises :class:`InvalidConfiguration` if no noise is enough, or if Opacus is not installed.
    """
    return _find_noise(epsilon, delta, rate, steps, tuple(spent))


@lru_cache(maxsize=256)
def _find_noise(epsilon: float, delta: float, rate: float, steps: int, before: tuple[Spending, ...]) -> float:
    def loses(noise: float) -> float:
        return find_epsilon((*before, Spending(noise, rate, steps)), delta)

    low, high = 0.0, 1.0
    while loses(high) > epsilon:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise InvalidConfiguration(
                f"dp: no noise keeps {steps} steps below epsilon {epsilon:g} at delta {delta:g}"
                + (f", of which {find_epsilon(before, delta):.3g} is spent" if before else "")
            )
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if loses(middle) > epsilon else (low, middle)
    return high


_NOTHING: Final = np.zeros(len(ORDERS))


@lru_cache(maxsize=256)
def _divergences(noise: float, rate: float) -> NDArray[np.float64]:
    """Of one step, for each order."""
    try:
        from opacus.accountants.analysis.rdp import compute_rdp
    except ImportError as error:
        raise InvalidConfiguration(
            f"dp: the library that accounts for it, Opacus, is not installed here ({error}).",
            hint="Install it with `pip install 'feddisco[dp]'`.",
        ) from error
    with np.errstate(all="ignore"):  # an order that overflows is infinite, and no minimum
        found = [_one_order(compute_rdp, noise, rate, order) for order in ORDERS]
    return np.array(found)


def _one_order(compute: object, noise: float, rate: float, order: float) -> float:
    try:
        value = float(compute(q=rate, noise_multiplier=noise, steps=1, orders=order))  # type: ignore[operator]
    except (OverflowError, ValueError):
        return math.inf
    return value if value >= 0 else math.inf


def check_epsilon(epsilon: float) -> None:
    """Raise :class:`InvalidConfiguration` if a loss is too large to mean anything."""
    if not epsilon <= LARGEST_EPSILON:
        raise InvalidConfiguration(
            f"dp: the run would lose epsilon {epsilon:.3g} here, and above {LARGEST_EPSILON:g} the guarantee "
            "says nothing",
            hint="More noise (dp.noise_multiplier), fewer steps, or smaller batches lose less.",
        )
