"""The paper's bound on FedAvg with arbitrary weights, and its minimisation by gradient steps (reference 6).

The appendix's form is used (``W_D`` with the factor K: the proof needs it, the main text lacks it).
The published table cannot come from these definitions as it is labelled: ``tables/theory.yaml`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXAMPLE", "PUBLISHED", "Bound", "Trace", "descend", "dinkelbach"]

Vector = NDArray[np.float64]

STEPS = (0, 100, 200, 300, 400)
PUBLISHED = {
    "reformulated": (0.0684, 0.0670, 0.0663, 0.0660, 0.0658),
    "original": (0.0524, 0.0513, 0.0507, 0.0504, 0.0502),
}


@dataclass(frozen=True)
class Bound:
    """The bound's constants. ``n``: size shares, ``d``: discrepancies of the K clients, each of shape (K,).

    ``smoothness`` L, ``rate`` eta, ``steps`` tau, ``rounds`` T, ``gap`` F_0 - F_inf, ``dissimilarity`` B,
    ``noise`` sigma squared.
    """

    n: Vector
    d: Vector
    smoothness: float = 1.0
    rate: float = 0.03
    steps: int = 10
    rounds: int = 100
    gap: float = 2.3
    dissimilarity: float = 1.0
    noise: float = 1.0

    @property
    def drift(self) -> float:
        """``A = 2 tau (tau - 1) eta^2 L^2``; below 1/3, or the bound is void."""
        return 2 * self.steps * (self.steps - 1) * self.rate**2 * self.smoothness**2

    def divisor(self, p: Vector) -> float:
        """``D = 1 - 3A - W_D (1 - A)`` with ``W_D = 2K sum (n_k - p_k)^2``."""
        mismatch = 2 * len(self.n) * float(((self.n - p) ** 2).sum())
        return 1 - 3 * self.drift - mismatch * (1 - self.drift)

    def terms(self, p: Vector) -> float:
        """``S = T_1 + ... + T_5``."""
        a, clients = self.drift, len(self.n)
        mismatch = 2 * clients * float(((self.n - p) ** 2).sum())
        start = 2 * (1 - a) * self.gap / (self.steps * self.rate * self.rounds)
        weights = (1 - a) * mismatch * self.dissimilarity / clients * float(self.d.sum())
        variance = 2 * (1 - a) * self.smoothness * self.rate * self.noise * float((p**2).sum())
        local = 2 * (self.steps - 1) * self.noise * self.smoothness**2 * self.rate**2
        skew = 2 * a * self.dissimilarity * float((p * self.d).sum())
        return start + weights + variance + local + skew

    def original(self, p: Vector) -> float:
        """``O = S / D``."""
        return self.terms(p) / self.divisor(p)

    def reformulated(self, p: Vector, trade_off: float) -> float:
        """``R = S - lambda D``."""
        return self.terms(p) - trade_off * self.divisor(p)

    def alphas(self, trade_off: float) -> tuple[float, float]:
        """``alpha_1 = 4 (1 - A)(B sum d + K lambda)`` and ``alpha_2 = 4 (1 - A) L eta sigma^2``."""
        scale = 4 * (1 - self.drift)
        skew = self.dissimilarity * float(self.d.sum()) + len(self.n) * trade_off
        return scale * skew, scale * self.smoothness * self.rate * self.noise

    def gradient(self, p: Vector, trade_off: float) -> Vector:
        """Of R: ``alpha_1 (p - n) + alpha_2 p + 2AB d``."""
        first, second = self.alphas(trade_off)
        return first * (p - self.n) + second * p + 2 * self.drift * self.dissimilarity * self.d

    def coefficients(self, trade_off: float) -> tuple[float, float]:
        """The a and b with which the minimiser of R is ``p_k ~ n_k - a d_k + b``."""
        first, second = self.alphas(trade_off)
        a = 2 * self.drift * self.dissimilarity / first
        return a, second / (len(self.n) * first) + a * float(self.d.mean())

    def minimiser(self, trade_off: float) -> Vector:
        """The weights that minimise R with sum one, where none of them would be negative."""
        a, b = self.coefficients(trade_off)
        scores = self.n - a * self.d + b
        return np.asarray(scores / scores.sum())


@dataclass(frozen=True)
class Trace:
    """The two bounds after each of ``steps`` gradient steps."""

    steps: tuple[int, ...]
    reformulated: tuple[float, ...]
    original: tuple[float, ...]


def descend(bound: Bound, trade_off: float, steps: Sequence[int] = STEPS) -> Trace:
    """Gradient descent on R from p = n, on the plane of weights that sum to one.

    R is quadratic with one curvature on that plane, so the distance to its minimum falls geometrically:
    the step is chosen to halve what is left of R in 100 steps, as the published rows do.
    """
    first, second = bound.alphas(trade_off)
    size = (1 - 2 ** (-1 / 200)) / (first + second)
    p, seen = bound.n.copy(), {}
    for step in range(max(steps) + 1):
        if step in steps:
            seen[step] = (bound.reformulated(p, trade_off), bound.original(p))
        slope = bound.gradient(p, trade_off)
        p -= size * (slope - slope.mean())
    return Trace(tuple(steps), tuple(seen[step][0] for step in steps), tuple(seen[step][1] for step in steps))


def dinkelbach(bound: Bound, repeats: int = 5) -> float:
    """The least O: minimise ``S - lambda D``, set lambda to the O found, again (converges in three)."""
    trade_off = bound.original(bound.n)
    for _ in range(repeats):
        trade_off = bound.original(bound.minimiser(trade_off))
    return trade_off


def _example() -> Bound:
    """CIFAR-10 dealt to ten clients by Dirichlet(0.5), seed 0: sizes and discrepancies as shares."""
    sizes = np.array([5307, 3688, 4435, 5047, 5189, 3803, 5202, 4325, 8078, 4926], dtype=np.float64)
    shares = [0.116777, 0.120517, 0.066614, 0.066107, 0.135512]
    shares += [0.118787, 0.128830, 0.067001, 0.092355, 0.087500]
    return Bound(sizes / 50000, np.array(shares))


EXAMPLE = _example()
