"""The bound on the example of reference 6.5: every number there was computed independently."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.theory import EXAMPLE, PUBLISHED, Bound, descend, dinkelbach

LAMBDA = 0.354666724627


def test_at_equal_weights_and_sizes() -> None:
    assert EXAMPLE.drift == pytest.approx(0.162)
    assert EXAMPLE.terms(EXAMPLE.n) == pytest.approx(0.182298696458, abs=1e-12)
    assert EXAMPLE.divisor(EXAMPLE.n) == pytest.approx(0.514)
    assert EXAMPLE.original(EXAMPLE.n) == pytest.approx(LAMBDA, abs=1e-12)


@pytest.mark.parametrize(
    ("trade_off", "reformulated", "original"),
    [
        (
            EXAMPLE.original(EXAMPLE.n),
            [0.0, -1.2068095e-05, -1.8102143e-05, -2.1119167e-05, -2.2627679e-05],
            [0.354666724627, 0.354643245636, 0.354631505547, 0.354625634992, 0.354622699365],
        ),
        (
            0.05,
            [0.156598696458, 0.156562597336, 0.156544547775, 0.156535522995, 0.156531010605],
            [0.354666724627, 0.354620483954, 0.354631294611, 0.354660702729, 0.35469238627],
        ),
    ],
    ids=["dinkelbach", "too-small"],
)
def test_descent(trade_off: float, reformulated: list[float], original: list[float]) -> None:
    trace = descend(EXAMPLE, trade_off)
    assert trace.steps == (0, 100, 200, 300, 400)
    assert trace.reformulated == pytest.approx(reformulated, abs=1e-12)
    assert trace.original == pytest.approx(original, abs=1e-12)


def test_the_closed_form() -> None:
    trade_off = EXAMPLE.original(EXAMPLE.n)
    assert EXAMPLE.alphas(trade_off) == pytest.approx((15.2404286095, 0.10056))
    assert EXAMPLE.coefficients(trade_off) == pytest.approx((0.0212592446, 0.0027857484), abs=1e-10)
    best = EXAMPLE.minimiser(trade_off)
    expected = [0.105745424, 0.073498686, 0.08947918, 0.101649655, 0.103005213]
    expected += [0.075820147, 0.103404631, 0.087285428, 0.161317936, 0.0987937]
    assert best == pytest.approx(np.array(expected), abs=1e-9)
    assert EXAMPLE.original(best) == pytest.approx(0.3546197622393791, abs=1e-15)
    assert dinkelbach(EXAMPLE) == pytest.approx(0.3546197622388846, abs=1e-15)
    slope = EXAMPLE.gradient(best, trade_off)
    assert slope - slope.mean() == pytest.approx(np.zeros(10), abs=1e-12)


def test_the_gradient_is_that_of_the_reformulated_bound() -> None:
    p = np.linspace(0.05, 0.15, 10)
    slope, step = EXAMPLE.gradient(p, 0.2), 1e-6
    for client in range(10):
        ahead, behind = p.copy(), p.copy()
        ahead[client] += step
        behind[client] -= step
        rise = EXAMPLE.reformulated(ahead, 0.2) - EXAMPLE.reformulated(behind, 0.2)
        assert rise / (2 * step) == pytest.approx(slope[client], rel=1e-6)


def test_no_constants_make_the_reformulated_bound_the_larger_one_as_printed() -> None:
    """The finding: R <= S <= O wherever the bound holds, but R > O in every published column."""
    random = np.random.default_rng(0)
    tried = 0
    for _ in range(300):
        bound = Bound(
            random.dirichlet([2.0] * 10), random.dirichlet([2.0] * 10), rate=random.uniform(0.001, 0.04)
        )
        p, trade_off = random.dirichlet([20.0] * 10), random.uniform(0, 2)
        if bound.divisor(p) > 0:
            tried += 1
            assert bound.reformulated(p, trade_off) <= bound.terms(p) <= bound.original(p)
    assert tried > 50
    assert all(r > o for r, o in zip(PUBLISHED["reformulated"], PUBLISHED["original"], strict=True))
