from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.config import DiscoWeighting, SizesWeighting, UniformWeighting
from shared.problems import InvalidRequest, WeightlessRound
from shared.weightings import Contribution, ledger
from shared.weightings.disco import weights

VECTORS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "weighting_vectors.yaml").read_text(encoding="utf-8")
)["weights"]

# The three clients of tests/algorithms/quadratic_vectors.yaml: 60, 30 and 10 examples, four classes.
TOY = (
    Contribution(1, 60, 0.0),
    Contribution(2, 30, math.log(4) - (2 / 3 * math.log(3 / 2) + 1 / 3 * math.log(3))),
    Contribution(3, 10, math.log(4)),
)

sizes = st.floats(0, 1e15, allow_subnormal=False)
distances = st.floats(0, 1e6, allow_subnormal=False)
coefficients = st.floats(0, 1e6, allow_subnormal=False)
clients = st.lists(st.tuples(sizes, distances | st.just(math.inf)), min_size=1, max_size=12).filter(
    lambda rows: any(n > 0 and math.isfinite(d) for n, d in rows)
)
scopes = st.sampled_from(["round", "none", "all_clients"])


def _columns(rows: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [n for n, _ in rows], [d for _, d in rows]


# ---------------------------------------------------------------- vectors


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_vectors(vector: dict[str, Any]) -> None:
    scope: Any = "round" if vector["d_normalise"] else "none"
    found = weights(vector["n"], vector["d"], vector["a"], vector["b"], normalise=scope)
    assert found == pytest.approx(vector["p"], abs=1e-9)


@pytest.mark.parametrize("name", ["W5", "W6"])
def test_all_zero_is_what_was_asked_for(name: str) -> None:
    vector = VECTORS[name]
    arguments = (vector["n"], vector["d"], vector["a"], vector["b"])
    assert weights(*arguments, "none", on_all_zero="uniform") == pytest.approx([1 / 3] * 3, abs=1e-15)
    with pytest.raises(WeightlessRound, match="set on_all_zero"):
        weights(*arguments, "none", on_all_zero="raise")


@pytest.mark.parametrize(
    ("indices", "over_round", "over_all"),
    [
        ((1, 2), (1.0, 0.0), (0.75716949, 0.24283051)),
        ((2, 3), (0.9635654, 0.0364346), (1.0, 0.0)),
    ],
)
def test_the_scope_of_the_normalisation(
    indices: tuple[int, int], over_round: tuple[float, float], over_all: tuple[float, float]
) -> None:
    """Reference 8.1: the same two clients, shares taken over the round or over all clients."""
    arrived = [row for row in TOY if row.index in indices]
    for scope, expected in (("round", over_round), ("all_clients", over_all)):
        rows = ledger(DiscoWeighting.model_validate({"normalise": scope}), arrived, TOY)
        assert [row.weight for row in rows] == pytest.approx(expected, abs=1e-7)
        assert [row.index for row in rows] == list(indices)


def test_without_the_relu_weights_may_be_negative() -> None:
    # scores 0.5 - 0.05 + 0.1 = 0.55, 0.3, -0.05 (W2): their sum is 0.8
    found = weights([0.5, 0.3, 0.2], [0.1, 0.2, 0.7], normalise="none", clip=False)
    assert found == pytest.approx([0.6875, 0.375, -0.0625], abs=1e-12)


# ---------------------------------------------------------------- laws


@given(clients, coefficients, st.floats(-10, 1e6, allow_subnormal=False), scopes)
def test_weights_are_a_distribution(rows: list[tuple[float, float]], a: float, b: float, scope: Any) -> None:
    found = weights(*_columns(rows), a, b, scope)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert (found >= 0).all()


@given(clients, coefficients, coefficients, scopes, st.randoms(use_true_random=False))
def test_a_permutation_permutes_the_bits(
    rows: list[tuple[float, float]], a: float, b: float, scope: Any, shuffle: random.Random
) -> None:
    order = shuffle.sample(range(len(rows)), len(rows))
    shuffled = weights(*_columns([rows[i] for i in order]), a, b, scope)
    assert shuffled.tolist() == weights(*_columns(rows), a, b, scope)[order].tolist()


@given(st.lists(st.tuples(sizes, distances), min_size=1, max_size=12), scopes)
def test_a_and_b_zero_give_sizes(rows: list[tuple[float, float]], scope: Any) -> None:
    n, d = _columns(rows)
    assume(sum(n) > 0)
    assert weights(n, d, 0, 0, scope) == pytest.approx(np.array(n) / sum(n), abs=1e-12)


@given(st.lists(st.tuples(sizes, distances), min_size=1, max_size=12))
def test_a_large_b_gives_uniform(rows: list[tuple[float, float]]) -> None:
    assume(any(n > 0 for n, _ in rows))
    assert weights(*_columns(rows), 0.5, 1e12) == pytest.approx(1 / len(rows), abs=1e-9)


@given(clients, coefficients, coefficients, st.data())
def test_a_larger_discrepancy_never_pays(
    rows: list[tuple[float, float]], a: float, b: float, data: st.DataObject
) -> None:
    """For normalise="none"; as long as some score is above zero, else sizes decide whatever d is."""
    n, d = _columns(rows)
    who = data.draw(st.integers(0, len(rows) - 1))
    worse = [*d]
    worse[who] = data.draw(st.floats(d[who], math.inf)) if math.isfinite(d[who]) else math.inf
    try:
        after = weights(n, worse, a, b, "none", on_all_zero="raise")
    except WeightlessRound:
        assume(False)
    assert after[who] <= weights(n, d, a, b, "none")[who] * (1 + 1e-12)


@given(clients, coefficients, coefficients)
def test_an_infinite_discrepancy_changes_nothing_for_the_others(
    rows: list[tuple[float, float]], a: float, b: float
) -> None:
    """It is out of the sum of d; a client without size then leaves n alone, too."""
    finite = [row for row in rows if math.isfinite(row[1])]
    assume(any(n > 0 for n, _ in finite))
    found = weights(*_columns([*finite, (0.0, math.inf)]), a, b)
    assert found[-1] == 0
    try:
        alone = weights(*_columns(finite), a, b, on_all_zero="raise")
    except WeightlessRound:
        return
    assert found[:-1].tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("n", "d", "said"),
    [
        ([1, -1], [0, 0], r"n\[1\] is -1"),
        ([1, math.nan], [0, 0], r"n\[1\] is nan"),
        ([math.inf, 1], [0, 0], r"n\[0\] is inf"),
        ([1, 1], [0, math.nan], r"d\[1\] is nan"),
        ([1, 1], [-0.5, 0], r"d\[0\] is -0.5"),
        ([0, 0], [0, 0], "all n are 0"),
        ([], [], "all n are 0"),
        ([1, 1], [0], r"shapes \(2,\), \(1,\)"),
    ],
)
def test_bad_input_is_named(n: list[float], d: list[float], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        weights(n, d)


@pytest.mark.parametrize(("a", "b"), [(-1, 0), (math.nan, 0), (0, math.inf)])
def test_bad_coefficients_are_named(a: float, b: float) -> None:
    with pytest.raises(InvalidRequest, match=f"a={a}, b={b}"):
        weights([1], [0], a, b)


# ---------------------------------------------------------------- the ledger


def test_a_row_holds_every_number_of_its_weight() -> None:
    """NIID-2 5+1 as the released code computes it (W9): d_k/sum = 1/5, score 1/6 - 0.5/5 + 0.1 = 1/6."""
    clients = [Contribution(index, 8330, math.log(5) if index else 0.0) for index in range(6)]
    rows = ledger(DiscoWeighting(), clients, clients)
    biased = rows[1]
    assert biased.included
    assert biased.reason is None
    assert biased.size_share == biased.size_weight == pytest.approx(1 / 6)
    assert biased.discrepancy == math.log(5)
    assert biased.discrepancy_share == pytest.approx(0.2)
    assert biased.score == pytest.approx(1 / 6)
    assert biased.weight == pytest.approx(0.1515151515, abs=1e-9)
    assert rows[0].weight == pytest.approx(0.2424242424, abs=1e-9)


def test_sizes_and_uniform() -> None:
    by_size = ledger(SizesWeighting(), TOY, TOY)
    assert [row.weight for row in by_size] == pytest.approx([0.6, 0.3, 0.1], abs=1e-15)
    uniform = ledger(UniformWeighting(), TOY, TOY)
    assert [row.weight for row in uniform] == pytest.approx([1 / 3] * 3, abs=1e-15)
    assert [row.size_weight for row in uniform] == [row.weight for row in by_size]
    assert {row.score for row in (*by_size, *uniform)} == {None}


def test_a_clipped_client_is_included_with_weight_zero_and_a_reason() -> None:
    rows = ledger(DiscoWeighting(), TOY, TOY)
    assert [row.weight for row in rows] == pytest.approx([0.7571694911, 0.2428305089, 0], abs=1e-9)
    assert [row.included for row in rows] == [True] * 3
    assert [row.reason for row in rows] == [None, None, "score below zero"]


def test_a_class_without_target_share_is_explained_and_out_of_the_sum() -> None:
    clients = [Contribution(0, 10, 1.0), Contribution(1, 10, math.inf), Contribution(2, 10, 1.0)]
    rows = ledger(DiscoWeighting(), clients, clients)
    assert rows[1].reason == "a class it holds has target share 0"
    assert rows[1].weight == 0
    assert rows[1].included
    assert rows[0].discrepancy_share == 0.5
    assert rows[0].weight == rows[2].weight == 0.5


@pytest.mark.parametrize(("on_all_zero", "expected"), [("sizes", [0.75, 0.25]), ("uniform", [0.5, 0.5])])
def test_an_infinite_discrepancy_has_no_weight_either_where_sizes_decide(
    on_all_zero: Any, expected: list[float]
) -> None:
    found = weights([3, 100, 1], [0.2, math.inf, 0.8], 0.5, -5, on_all_zero=on_all_zero)
    assert found.tolist() == [expected[0], 0, expected[1]]
    clients = [Contribution(0, 30, 0.2), Contribution(1, 1000, math.inf), Contribution(2, 10, 0.8)]
    rows = ledger(DiscoWeighting(b=-5, on_all_zero=on_all_zero), clients, clients)
    assert [row.weight for row in rows] == [expected[0], 0, expected[1]]
    assert rows[1].reason == "a class it holds has target share 0"
    assert "no score in the round is above zero" in (rows[0].reason or "")


@pytest.mark.parametrize("on_all_zero", ["sizes", "uniform", "raise"])
def test_a_round_of_infinite_discrepancies_has_no_weight(on_all_zero: Any) -> None:
    with pytest.raises(WeightlessRound):
        weights([3, 1], [math.inf, math.inf], on_all_zero=on_all_zero)
    clients = [Contribution(0, 3, math.inf), Contribution(1, 1, math.inf)]
    rows = ledger(DiscoWeighting(on_all_zero=on_all_zero), clients, clients)
    assert [row.weight for row in rows] == [0, 0]
    assert {row.reason for row in rows} == {"a class it holds has target share 0"}


@pytest.mark.parametrize("weighting", [SizesWeighting(), UniformWeighting(), DiscoWeighting()])
def test_a_client_without_examples_is_left_out_and_disturbs_nobody(weighting: Any) -> None:
    rows = ledger(weighting, [Contribution(0, 0, 0.3), *TOY], TOY)
    assert (rows[0].included, rows[0].reason, rows[0].weight, rows[0].size_weight) == (
        False,
        "no examples",
        0,
        0,
    )
    assert rows[1:] == ledger(weighting, TOY, TOY)


def test_without_a_discrepancy_only_disco_leaves_a_client_out() -> None:
    arrived = [Contribution(0, 10, None), Contribution(1, 10, 0.0)]
    disco = ledger(DiscoWeighting(), arrived, arrived)
    assert [(row.included, row.weight, row.reason) for row in disco] == [
        (False, 0.0, "no discrepancy submitted"),
        (True, 1.0, None),
    ]
    assert [row.weight for row in ledger(SizesWeighting(), arrived, arrived)] == [0.5, 0.5]


@pytest.mark.parametrize("weighting", [SizesWeighting(), UniformWeighting(), DiscoWeighting()])
def test_nobody_left_means_no_weight(weighting: Any) -> None:
    assert ledger(weighting, [], TOY) == ()
    assert [row.weight for row in ledger(weighting, [Contribution(4, 0, 0.0)], TOY)] == [0]


@pytest.mark.parametrize(
    ("on_all_zero", "expected", "said"),
    [
        ("sizes", [0.6, 0.3, 0.1], "sizes decide instead"),
        ("uniform", [1 / 3] * 3, "all weights are equal instead"),
        ("raise", [0, 0, 0], "so the round has no weight"),
    ],
)
def test_all_scores_below_zero_is_explained(on_all_zero: str, expected: list[float], said: str) -> None:
    weighting = DiscoWeighting.model_validate({"b": -5.0, "on_all_zero": on_all_zero})
    rows = ledger(weighting, TOY, TOY)
    assert [row.weight for row in rows] == pytest.approx(expected, abs=1e-12)
    assert all(said in (row.reason or "") for row in rows)


@given(st.permutations([*TOY, Contribution(0, 0, None), Contribution(7, 25, math.inf)]), scopes)
def test_arrival_order_does_not_change_a_bit(arrived: list[Contribution], scope: Any) -> None:
    weighting = DiscoWeighting.model_validate({"normalise": scope})
    rows = ledger(weighting, arrived, arrived)
    assert rows == ledger(weighting, sorted(arrived, key=lambda row: row.index), TOY)
    assert [row.index for row in rows] == [0, 1, 2, 3, 7]
