"""Each weighting against its formula, computed another way: vectors in place of inner products, autograd in
place of derivatives by hand, the authors' loops in place of one expression."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.weightings import available, find_taken, kinds, load_weighting, weigh
from shared.weightings.base import (
    Contribution,
    Need,
    Vector,
    Weighed,
    Weighting,
    WeightingRound,
    distances_to_mean,
    layer_of,
    make_rows,
)
from shared.weightings.disco import DiscoWeighting
from shared.weightings.fedadp import FedAdpWeighting
from shared.weightings.fedawa import FedAwaWeighting
from shared.weightings.feddgga import FedDgGaWeighting
from shared.weightings.fedlaw import FedLawWeighting
from shared.weightings.fedlws import FedLwsWeighting
from shared.weightings.fedpals import FedPalsWeighting, minimise_over_simplex
from shared.weightings.nashmtl import NashMtlWeighting, solve_bargain
from shared.weightings.own import OwnWeighting
from shared.weightings.qfedavg import QFedAvgWeighting
from tests.helpers.weighting_rounds import LinearProxy, flat, round_of, vectors


def weights_of(weighed: Weighed) -> list[float]:
    return [row.weight for row in weighed.rows]


# ---------------------------------------------------------------- one number, counts


def test_entropy_from_the_labels_themselves() -> None:
    counts = [[30, 30, 30, 30], [50, 50, 0, 0], [10, 0, 0, 0]]
    entropies = [-sum(c / sum(row) * math.log(c / sum(row)) for c in row if c) for row in counts]
    for temperature in (1.0, 0.25, 30.0):
        scores = [sum(row) * math.exp(h / temperature) for row, h in zip(counts, entropies, strict=True)]
        rows = [Contribution(i, sum(row), math.log(4) - entropies[i]) for i, row in enumerate(counts)]
        weighting = RunConfig.model_validate(
            {"name": "a", "weighting": {"kind": "entropy", "temperature": temperature}}
        ).weighting
        found = weights_of(weighting.weigh(WeightingRound(rows)))
        assert found == pytest.approx([score / sum(scores) for score in scores], abs=1e-12)


def test_entropy_with_a_temperature_near_zero_leaves_somebody_a_weight() -> None:
    weighting = RunConfig.model_validate(
        {"name": "a", "weighting": {"kind": "entropy", "temperature": 1e-6}}
    ).weighting
    found = weighting.weigh(WeightingRound([Contribution(0, 10, 1.5), Contribution(1, 10, 1.0)]))
    assert weights_of(found) == [0, 1]


mixes = st.integers(2, 7).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 50), min_size=classes, max_size=classes).filter(any), min_size=1, max_size=9
    )
)


def objective(p: Vector, counts: Vector, penalty: float) -> float:
    shares = counts / counts.sum(axis=1, keepdims=True)
    n = counts.sum(axis=1) / counts.sum()
    miss = 1 / counts.shape[1] - p @ shares
    return float((miss**2).sum() + penalty * (p**2 / n).sum())


@given(mixes, st.sampled_from([0.0, 1e-4, 0.01, 1.0, 1e4]), st.integers(0, 2**32 - 1))
def test_no_other_weights_are_better_than_fedpals(counts: list[list[int]], penalty: float, seed: int) -> None:
    table = np.array(counts, dtype=np.float64)
    rows = [Contribution(i, int(row.sum()), counts=tuple(row.tolist())) for i, row in enumerate(table)]
    found = np.array(weights_of(FedPalsWeighting(penalty=penalty).weigh(WeightingRound(rows))))
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-12)
    best = objective(found, table, penalty)
    random = np.random.default_rng(seed)
    others = [*np.eye(len(table)), np.full(len(table), 1 / len(table)), table.sum(axis=1) / table.sum()]
    others += [random.dirichlet(np.full(len(table), 0.3)) for _ in range(20)]
    for other in others:
        for length in (1.0, 1e-2, 1e-4):  # far away, and near by: the objective is convex
            tried = objective(found + length * (other - found), table, penalty)
            assert best <= tried + 1e-10 * max(1.0, penalty)


def test_fedpals_finds_the_mix_that_is_there() -> None:
    """Two halves and a third with one class only: equal weights of the halves give the target exactly."""
    rows = [
        Contribution(0, 100, counts=(50, 50, 0, 0)),
        Contribution(1, 300, counts=(0, 0, 150, 150)),
        Contribution(2, 50, counts=(50, 0, 0, 0)),
    ]
    weighed = FedPalsWeighting(penalty=0).weigh(WeightingRound(rows))
    assert weights_of(weighed) == pytest.approx([0.5, 0.5, 0], abs=1e-12)
    assert weighed.rows[2].details["distance"] == pytest.approx(math.sqrt(0.75**2 + 3 / 16))
    much = FedPalsWeighting(penalty=1e9).weigh(WeightingRound(rows))
    assert weights_of(much) == pytest.approx([100 / 450, 300 / 450, 50 / 450], abs=1e-6)


def test_fedpals_by_projected_gradients() -> None:
    """Another way to the same weights: small steps, each projected back onto the simplex by sorting."""
    random = np.random.default_rng(3)
    shares = random.dirichlet(np.full(10, 0.2), size=8)
    gram, linear = shares @ shares.T + 0.02 * np.eye(8), shares @ np.full(10, 0.1)
    p = np.full(8, 1 / 8)
    for _ in range(20_000):
        wanted = p - 0.2 * (gram @ p - linear)
        ordered = np.sort(wanted)[::-1]
        excess = (np.cumsum(ordered) - 1) / np.arange(1, 9)
        p = np.maximum(wanted - excess[np.flatnonzero(ordered > excess)[-1]], 0)
    assert minimise_over_simplex(gram, linear) == pytest.approx(p, abs=1e-9)
    assert (p == 0).any(), "a case in which somebody is left out"


@pytest.mark.parametrize("target", [(), (1.0,), (0.0, 0.0), (1e308, 1e308), (-1.0, 2.0), (math.inf, 1.0)])
@pytest.mark.parametrize("kind", ["disco", "fedpals", "fedlws", "package.module:Rule"])
def test_a_target_without_shares_is_refused_wherever_it_stands(kind: str, target: tuple[float, ...]) -> None:
    places: dict[str, dict[str, Any]] = {
        "fedlws": {"mean": {"kind": "disco", "target": target}},
        "package.module:Rule": {"asked": {"target": target}},
    }
    weighting = {"kind": kind, **places.get(kind, {"target": target})}
    with pytest.raises(ValidationError, match="target"):
        RunConfig.model_validate({"name": "x", "weighting": weighting})


def test_a_penalty_beyond_which_all_are_sizes_is_refused() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 1000000000"):
        FedPalsWeighting(penalty=1e308)


def test_a_target_of_another_length_is_named() -> None:
    rows = [Contribution(0, 3, counts=(1, 2, 0))]
    with pytest.raises(InvalidConfiguration, match="2 shares for 3 classes"):
        FedPalsWeighting(target=(0.5, 0.5)).weigh(WeightingRound(rows))


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
def test_q_fedavg_as_its_authors_sum_it(q: float) -> None:
    """``x - sum Delta_k / sum h_k`` of the released trainer, each client counted n_k times."""
    x, moved = vectors(4)
    sizes, losses, rate = [10, 20, 30, 40], [2.3, 0.4, 1.1, 0.9], 0.05
    deltas, hs = [], []
    for y, size, loss in zip(moved, sizes, losses, strict=True):
        gradient = (flat(x) - flat(y)) / rate
        deltas.append(size * (loss + 1e-10) ** q * gradient)
        h = q * (loss + 1e-10) ** (q - 1) * (gradient @ gradient) + (loss + 1e-10) ** q / rate
        hs.append(size * h)
    expected = flat(x) - sum(deltas) / sum(hs)
    round = round_of(x, moved, sizes, step_length=rate)
    taken = [replace(row, start_loss=loss) for row, loss in zip(round.taken, losses, strict=True)]
    weighed = QFedAvgWeighting(q=q).weigh(replace(round, taken=taken))
    mean = sum(p * flat(y) for p, y in zip(weights_of(weighed), moved, strict=True))
    found = flat(x) + weighed.adjustment.step * (mean - flat(x))
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 < weighed.adjustment.step <= 1
    if q == 0:
        assert weights_of(weighed) == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert not weighed.adjustment


def refine_by_gap(
    weights: dict[int, float],
    before: Mapping[int, float],
    after: Mapping[int, float],
    step: float,
    centred: bool,
) -> dict[int, float]:
    """One change of FedDG-GA's weights, as the released code makes it; ``centred``: as the paper does."""
    gaps = {k: after[k] - before[k] for k in weights}
    if centred:
        mean = sum(gaps.values()) / len(gaps)
        gaps = {k: gap - mean for k, gap in gaps.items()}
    largest = max(abs(gap) for gap in gaps.values())
    moved = {k: min(max(weights[k] + gaps[k] / largest * step / len(weights), 0), 1) for k in weights}
    return {k: value / sum(moved.values()) for k, value in moved.items()}


@pytest.mark.parametrize("centred", [True, False])
def test_feddg_ga_round_after_round(centred: bool) -> None:
    """All clients in each round: the gaps are those of the round before, the steps fall linearly."""
    random, rounds, weighting = np.random.default_rng(5), 6, FedDgGaWeighting(step=0.5, centred=centred)
    start, end = random.uniform(0.5, 2, (rounds, 3)), random.uniform(0.1, 1, (rounds, 3))
    memory: dict[str, Any] = {}
    expected = dict.fromkeys(range(3), 1 / 3)
    for t in range(rounds):
        if t:
            step = 0.5 - (t - 1 - 1) * 0.5 / rounds  # released: i of the round before, from 0
            expected = refine_by_gap(
                expected, dict(enumerate(end[t - 1])), dict(enumerate(start[t])), step, centred
            )
        taken = [Contribution(k, 10 * (k + 1), start_loss=start[t, k], end_loss=end[t, k]) for k in range(3)]
        weighed = weighting.weigh(WeightingRound(taken, taken, t + 1, rounds, memory=memory))
        memory = dict(weighed.memory)
        assert weights_of(weighed) == pytest.approx(list(expected.values()), abs=1e-12)


def test_feddg_ga_leaves_those_who_are_not_there_alone() -> None:
    everyone = [Contribution(k, 10) for k in range(4)]

    def taken(*rows: tuple[int, float, float]) -> list[Contribution]:
        return [Contribution(k, 10, start_loss=before, end_loss=after) for k, before, after in rows]

    weighting = FedDgGaWeighting()
    first = weighting.weigh(WeightingRound(taken((0, 2, 1), (1, 2, 1)), everyone, 1, 9))
    assert weights_of(first) == [0.5, 0.5]
    second = weighting.weigh(
        WeightingRound(taken((1, 1.5, 1), (2, 1.5, 1)), everyone, 2, 9, memory=first.memory)
    )
    assert weights_of(second) == [0.5, 0.5], "one gap alone is its own mean"
    third = weighting.weigh(
        WeightingRound(taken((0, 3, 1), (1, 1.5, 1)), everyone, 3, 9, memory=second.memory)
    )
    assert weights_of(third) == pytest.approx([0.6, 0.4]), "0.2 of an equal weight each way"
    assert third.memory["weight"] == pytest.approx({0: 0.3, 1: 0.2, 2: 0.25})


# ---------------------------------------------------------------- updates


def test_fedadp_angle_by_angle() -> None:
    """Rounds with other clients: the angle is averaged over a client's own rounds."""
    memory: dict[str, Any] = {}
    weighting, seen = FedAdpWeighting(alpha=5), {k: list[float]() for k in range(4)}
    for t, present in enumerate([(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]):
        x, moved = vectors(len(present), seed=t)
        sizes = [10 * (k + 1) for k in present]
        u = [flat(y) - flat(x) for y in moved]
        mean = np.average(u, axis=0, weights=sizes)
        for k, v in zip(present, u, strict=True):
            seen[k].append(math.acos(v @ mean / math.sqrt(v @ v) / math.sqrt(mean @ mean)))
        smooth = {k: sum(seen[k]) / len(seen[k]) for k in present}
        scores = [
            size * math.exp(5 * (1 - math.exp(-math.exp(-5 * (smooth[k] - 1)))))
            for k, size in zip(present, sizes, strict=True)
        ]
        weighed = weighting.weigh(round_of(x, moved, sizes, present, memory=memory))
        memory = dict(weighed.memory)
        assert weights_of(weighed) == pytest.approx([score / sum(scores) for score in scores], abs=1e-10)
        assert [row.details["angle"] for row in weighed.rows] == pytest.approx([seen[k][-1] for k in present])


@pytest.mark.parametrize(("steps", "distance"), [(1, "cosine"), (7, "cosine"), (3, "squared")])
def test_fedawa_by_autograd_on_the_vectors(steps: int, distance: Any) -> None:
    weighting = FedAwaWeighting(steps=steps, learning_rate=0.05, distance=distance)
    memory: dict[str, Any] = {}
    sizes = [10, 20, 30]
    logits = torch.log(torch.tensor(sizes, dtype=torch.float64) / 60)
    for t in range(3):
        x, moved = vectors(3, seed=t)
        start, local = torch.from_numpy(flat(x)), torch.from_numpy(np.stack([flat(y) for y in moved]))
        logits = logits.detach().clone().requires_grad_()
        adam = torch.optim.Adam([logits], lr=0.05, betas=(0.5, 0.999))
        for _ in range(steps):
            adam.zero_grad()
            p = torch.softmax(logits, dim=0)
            costs = (
                1 - torch.cosine_similarity(start[None], local, dim=1)
                if distance == "cosine"
                else (local - start).square().mean(dim=1)
            )
            u = local - start
            apart = torch.linalg.vector_norm(u - (p[:, None] * u).sum(dim=0), dim=1)
            torch.autograd.backward((p * costs).sum() + (p * apart).sum())
            adam.step()
        weighed = weighting.weigh(round_of(x, moved, sizes, memory=memory))
        memory = dict(weighed.memory)
        assert weights_of(weighed) == pytest.approx(torch.softmax(logits, dim=0).tolist(), abs=1e-9)


def test_fedawa_begins_with_a_later_client_as_its_size_is_beside_the_others() -> None:
    """Where the weights hardly move they are sizes, whoever took part before."""
    weighting = FedAwaWeighting(learning_rate=1e-9)
    everyone = [Contribution(index, size) for index, size in enumerate((10, 1000, 10, 500))]
    memory: dict[str, Any] = {}
    for present in [(0, 1), (0, 2), (2, 3), (0, 1, 2, 3)]:
        x, moved = vectors(len(present), seed=len(memory))
        sizes = [everyone[index].examples for index in present]
        round = round_of(x, moved, sizes, present, memory=memory, everyone=everyone)
        weighed = weighting.weigh(round)
        memory = dict(weighed.memory)
        assert weights_of(weighed) == pytest.approx([size / sum(sizes) for size in sizes], abs=1e-6)


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_nash_mtl_is_where_the_product_of_gains_is_largest(clients: int, seed: int) -> None:
    """On the vectors: alpha_k (g_k . sum_j alpha_j g_j) = 1, and no direction of that length gains more."""
    random = np.random.default_rng(seed)
    updates = random.normal(size=(clients, 12)) * random.lognormal(sigma=2, size=(clients, 1))
    alpha = solve_bargain(updates @ updates.T)
    assert (alpha > 0).all()
    agreed = alpha @ updates
    assert alpha * (updates @ agreed) == pytest.approx(np.ones(clients), abs=1e-5)
    best = float(np.log(updates @ agreed).sum())
    for _ in range(20):
        other = agreed + random.normal(size=12) * np.linalg.norm(agreed) * 10 ** random.uniform(-4, 0)
        gains = updates @ (other * np.linalg.norm(agreed) / np.linalg.norm(other))
        assert (gains <= 0).any() or float(np.log(gains).sum()) <= best + 1e-6


def test_nash_mtl_by_gradient_descent_on_the_vectors() -> None:
    """Another way to the same weights: ascent of the sum of logarithms of gains over unit directions."""
    x, moved = vectors(4, seed=5)
    updates = torch.from_numpy(np.stack([flat(y) - flat(x) for y in moved]))
    direction = (updates / updates.norm(dim=1, keepdim=True)).sum(dim=0).requires_grad_()
    ascent = torch.optim.LBFGS([direction], max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

    def objective() -> torch.Tensor:
        ascent.zero_grad()
        loss = -torch.log(updates @ (direction / direction.norm())).sum()
        torch.autograd.backward(loss)
        return loss

    ascent.step(objective)  # type: ignore[no-untyped-call]
    unit = (direction / direction.norm()).detach()
    scores = 1 / (updates @ unit)  # the bargain's condition, for a direction of unit length
    weighed = NashMtlWeighting().weigh(round_of(x, moved, [10, 900, 20, 5]))
    assert weights_of(weighed) == pytest.approx((scores / scores.sum()).tolist(), abs=1e-6)
    mean = np.array(weights_of(weighed)) @ updates.numpy()
    assert float(mean @ unit.numpy() / np.linalg.norm(mean)) == pytest.approx(1)
    assert [row.details["gain"] for row in weighed.rows] == pytest.approx((updates.numpy() @ mean).tolist())


def test_nash_mtl_where_there_is_nothing_to_agree_on() -> None:
    """Updates that cancel each other leave the model where it is; who did not move has no weight."""
    x = {"only": np.zeros(3)}
    ahead, behind, still = ({"only": np.array([v, 0.0, 0.0])} for v in (1.0, -2.0, 0.0))
    weighed = NashMtlWeighting().weigh(round_of(x, [ahead, behind, still], [1, 1, 1]))
    assert weights_of(weighed) == pytest.approx([2 / 3, 1 / 3, 0])
    assert [row.reason for row in weighed.rows] == [None, None, "its update does not move the model"]
    nobody = NashMtlWeighting().weigh(round_of(x, [still, still], [1, 3]))
    assert weights_of(nobody) == [0.5, 0.5]


def test_fedlws_layer_by_layer() -> None:
    """The released loops, over the layers' vectors; the bounds of tau are both met."""
    x, moved = vectors(3)
    x["second"] = x["second"] * 50  # a layer in which little moves
    moved = [{**y, "second": x["second"] + 1e-4 * (k + 1)} for k, y in enumerate(moved)]
    moved = [{**y, "third": y["third"] * (1 + 9 * k)} for k, y in enumerate(moved)]
    sizes = [10, 20, 70]
    round = round_of(x, moved, sizes)
    taus = []
    for name, start in x.items():
        mean = sum(size / 100 * y[name] for size, y in zip(sizes, moved, strict=True))
        changes = [y[name] - start for y in moved]
        plain = np.mean(changes, axis=0)
        tau = 0.03 * np.mean([np.linalg.norm(change - plain) for change in changes])
        taus.append(min(max(tau, 0.01), 0.2))
        gamma = np.linalg.norm(start) / (np.linalg.norm(start) + taus[-1] * np.linalg.norm(mean - start))
        found = FedLwsWeighting().weigh(round)
        assert found.adjustment.layers[name] == pytest.approx(gamma, abs=1e-12)
    assert weights_of(found) == pytest.approx([0.1, 0.2, 0.7])
    assert min(taus) == 0.01
    assert max(taus) == 0.2
    assert 0.01 < taus[0] < 0.2


def test_fedlws_shrinks_the_mean_of_other_weights() -> None:
    x, moved = vectors(3)
    round = round_of(x, moved, [10, 10, 10])
    taken = [replace(row, discrepancy=d) for row, d in zip(round.taken, (0.0, 1.0, 1.0), strict=True)]
    weighting = FedLwsWeighting.model_validate({"mean": {"kind": "disco", "a": 0.2}})
    assert weighting.needs == {Need.NUMBER, Need.UPDATES}
    assert weighting.discrepancy == weighting.mean.discrepancy
    weighed = weighting.weigh(replace(round, taken=taken))
    assert weights_of(weighed) == weights_of(weighting.mean.weigh(WeightingRound(taken)))
    assert weighed.rows[0].score is not None
    plain = FedLwsWeighting().weigh(round)
    assert weighed.adjustment.layers != plain.adjustment.layers, "another mean is another length"


def test_a_layer_of_zeros_is_not_kept_at_zero() -> None:
    x, moved = vectors(2)
    x["third"] = np.zeros(3)
    assert FedLwsWeighting().weigh(round_of(x, moved, [1, 1])).adjustment.layers["third"] == 1


@given(st.integers(1, 6), st.integers(0, 99))
def test_distances_from_inner_products(clients: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    u, p = random.normal(size=(clients, 5)), random.dirichlet(np.ones(clients))
    expected = np.linalg.norm(u - p @ u, axis=1)
    assert distances_to_mean(u @ u.T, p) == pytest.approx(expected, abs=1e-7)


# ---------------------------------------------------------------- data


def test_fedlaw_by_autograd_adam_and_step_lr() -> None:
    x, moved = vectors(3)
    proxy, sizes = LinearProxy(torch.from_numpy(np.stack([flat(y) for y in moved]))), [10, 20, 30]
    optimizees = torch.tensor([*np.log(np.array(sizes) / 60), 0.0], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([optimizees], lr=0.02, betas=(0.5, 0.999))
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=20, gamma=0.5)
    for _ in range(45):
        for batch in range(2):
            adam.zero_grad()
            coefficients = torch.exp(optimizees[-1]) * torch.softmax(optimizees[:-1], dim=0)
            torch.autograd.backward(proxy.loss(coefficients, batch))
            adam.step()
        scheduler.step()
    weighed = FedLawWeighting(learning_rate=0.02, epochs=45).weigh(
        replace(round_of(x, moved, sizes), proxy=proxy)
    )
    assert weights_of(weighed) == pytest.approx(torch.softmax(optimizees[:-1], 0).tolist(), abs=1e-9)
    assert weighed.adjustment.shrink == pytest.approx(math.exp(optimizees[-1].item()), abs=1e-9)
    assert weighed.adjustment.shrink < 0.99, "it has learned something"


@pytest.mark.parametrize("rule", ["median", "clipped", {"kind": "krum", "byzantine": 1}])
def test_fedlaw_learns_for_a_mean_alone(rule: Any) -> None:
    fields = {"name": "a", "weighting": "fedlaw", "min_clients": 5, "quorum": 5}
    RunConfig.model_validate(fields)
    with pytest.raises(ValidationError, match="weighting: fedlaw learns how to mix the clients' models"):
        RunConfig.model_validate({**fields, "aggregation": rule})


@pytest.mark.parametrize("rate", [50.0, 1e4])
def test_fedlaw_that_learns_too_fast_says_so(rate: float) -> None:
    x, moved = vectors(3)
    proxy = LinearProxy(torch.from_numpy(np.stack([flat(y) for y in moved])))
    with pytest.raises(InvalidConfiguration, match="grows without bound"):
        FedLawWeighting(learning_rate=rate).weigh(replace(round_of(x, moved, [10, 20, 30]), proxy=proxy))


# ---------------------------------------------------------------- what all keep

OPTIONS = {"fedlaw": {"epochs": 2}}
WEIGHTINGS = [
    kind.model_validate({"kind": name, **OPTIONS.get(name, {})})
    for name, kind in zip(available(), kinds(), strict=True)
]


@st.composite
def rounds(draw: st.DrawFn) -> WeightingRound:
    """A round with everything that any weighting may need."""
    clients = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    x, moved = vectors(clients, seed)
    if draw(st.booleans()):
        moved[0] = {**x}  # a client that did not move
    indices = sorted(random.choice(20, clients, replace=False).tolist())
    round = round_of(
        x, moved, draw(st.lists(st.integers(1, 5000), min_size=clients, max_size=clients)), indices
    )
    taken = [
        replace(
            row,
            discrepancy=draw(st.floats(0, 3)),
            counts=tuple(random.integers(1, 30, 4).astype(float).tolist()),
            start_loss=draw(st.floats(0, 1e3)),
            end_loss=draw(st.floats(0, 1e3)),
        )
        for row in round.taken
    ]
    local = torch.from_numpy(np.stack([flat(y) for y in moved]))
    return replace(round, taken=taken, everyone=taken, rounds=9, proxy=LinearProxy(local))


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda weighting: weighting.kind)
@settings(deadline=None, max_examples=30)
@given(round=rounds())
def test_weights_are_a_distribution_and_memory_is_numbers(
    weighting: Weighting, round: WeightingRound
) -> None:
    """Of three rounds, each with what the one before left."""
    for number in (1, 2, 3):
        weighed = weighting.weigh(replace(round, number=number))
        weights = weights_of(weighed)
        assert min(weights) >= 0
        assert math.fsum(weights) == pytest.approx(1, abs=1e-12)
        assert [row.index for row in weighed.rows] == round.indices
        assert all(math.isfinite(v) for kept in weighed.memory.values() for v in kept.values())
        adjustment = weighed.adjustment
        assert all(math.isfinite(f) and f > 0 for f in (adjustment.step, adjustment.shrink))
        assert all(0 < factor <= 1 for factor in adjustment.layers.values())
        again = weighting.weigh(replace(round, number=number))
        assert (again.rows, again.memory) == (weighed.rows, weighed.memory), "it remembers nothing itself"
        round = replace(round, memory=weighed.memory)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda weighting: weighting.kind)
def test_a_client_that_lacks_what_is_needed_is_left_out_with_the_reason(weighting: Weighting) -> None:
    full = Contribution(0, 10, 0.5, (5.0, 5.0), 1.0, 0.5)
    lacking = {
        Need.NUMBER: replace(full, index=1, discrepancy=None),
        Need.COUNTS: replace(full, index=1, counts=None),
        Need.START_LOSS: replace(full, index=1, start_loss=None),
        Need.END_LOSS: replace(full, index=1, end_loss=None),
    }
    for need, row in lacking.items():
        taken = find_taken(weighting, [row, full])
        assert (row in taken) == (need not in weighting.needs)
    out = weigh(weighting, [replace(full, examples=0)], WeightingRound([], [full]))
    assert [(row.included, row.weight, row.reason) for row in out.rows] == [(False, 0.0, "no examples")]


@pytest.mark.parametrize("name", available())
def test_the_kind_is_the_files_name_and_the_paper_is_named(name: str) -> None:
    module = importlib.import_module(f"shared.weightings.{name}")
    (found,) = [kind for kind in kinds() if kind.__module__ == module.__name__]
    assert found.model_fields["kind"].default == name
    assert any(char.isdigit() for char in found.citation), "a year"
    config = RunConfig.model_validate({"name": "a", "weighting": {"kind": name}})
    assert type(config.weighting) is found
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_without_updates_or_data_the_reason_is_said() -> None:
    with pytest.raises(InvalidConfiguration, match="needs the updates"):
        FedAdpWeighting().weigh(WeightingRound([Contribution(0, 1)]))
    with pytest.raises(InvalidConfiguration, match="needs labelled examples"):
        FedLawWeighting().weigh(WeightingRound([Contribution(0, 1)]))


def test_layers_are_what_parameters_are_named_after() -> None:
    assert {layer_of(name) for name in ("a.b.weight", "a.b.bias", "scale")} == {"a.b", "scale"}


# ---------------------------------------------------------------- one's own


class Squared(Weighting):
    """By the square of the size: a weighting of one's own."""

    kind: str = "squared"
    power: float = 2.0

    def weigh(self, round: WeightingRound) -> Weighed:
        scores = round.size_shares**self.power
        return Weighed(make_rows(round, scores / scores.sum(), scores))


class Demanding(Squared):
    asks = frozenset({Need.NUMBER, Need.START_LOSS, Need.UPDATES})


def own(attribute: str, **fields: Any) -> OwnWeighting:
    config = RunConfig.model_validate(
        {"name": "a", "weighting": {"kind": f"{__name__}:{attribute}", **fields}}
    )
    assert isinstance(config.weighting, OwnWeighting)
    return config.weighting


def test_a_weighting_of_ones_own() -> None:
    loaded = load_weighting(own("Squared", options={"power": 1.0}))
    assert weights_of(loaded.weigh(WeightingRound([Contribution(0, 30), Contribution(1, 10)]))) == [
        0.75,
        0.25,
    ]
    assert own("Squared").discrepancy is None
    asked = own("Demanding", asked={"metric": "l1"}, losses=True)
    assert asked.discrepancy == ("l1", "uniform")
    assert Need.START_LOSS in asked.needs
    assert isinstance(load_weighting(asked), Demanding)


def test_a_configuration_with_ones_own_weighting_imports_nothing() -> None:
    config = RunConfig.model_validate({"name": "a", "weighting": {"kind": "no_such.package:Thing"}})
    assert not config.needs_discrepancy
    with pytest.raises(InvalidConfiguration, match=r"'no_such.package:Thing' cannot be imported"):
        load_weighting(config.weighting)


@pytest.mark.parametrize(
    ("attribute", "fields", "said"),
    [
        ("Contribution", {}, "not a weighting"),
        ("Squared", {"options": {"powr": 1}}, "powr: Extra inputs"),
        ("Demanding", {"asked": {}}, "does not say: start_loss"),
        ("Demanding", {"losses": True}, "does not say: number"),
    ],
)
def test_what_is_wrong_with_ones_own_is_named(attribute: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_weighting(own(attribute, **fields))


def weighed(round: WeightingRound, *columns: Vector | list[float], **details: list[float]) -> Weighed:
    return Weighed(make_rows(round, *columns, **details))


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda round: weighed(round, np.array([1.0])), "1 weights for 2 clients"),
        (lambda round: weighed(round, [0.5, 0.5], [1.0]), "1 scores for 2 clients"),
        (lambda round: weighed(round, [0.5, 0.5], angle=[1.0]), "1 angle for 2 clients"),
        (lambda round: Weighed(make_rows(round, [0.5, 0.5])[:1]), r"\[3\] and no row for each .* \[3, 7\]"),
        (lambda round: Weighed(make_rows(round, [0.5, 0.5]) * 2), r"\[3, 3, 7, 7\] and no row"),
        (lambda round: weighed(round, [0.5, float("nan")]), "client 7 the weight nan"),
        (lambda round: None, "None and no row"),
    ],
)
def test_what_ones_own_gives_amiss_is_named(give: Callable[[WeightingRound], Any], said: str) -> None:
    class Amiss(Weighting):
        kind: str = "amiss"

        def weigh(self, round: WeightingRound) -> Weighed:
            return give(round)  # type: ignore[no-any-return]

    round = WeightingRound([Contribution(3, 30), Contribution(7, 10)], [])
    with pytest.raises(InvalidConfiguration, match=said):
        weigh(Amiss(), round.taken, round)


def test_an_unknown_kind_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"kind is none of disco, entropy, .*, or package\.module:attribute"):
        RunConfig.model_validate({"name": "a", "weighting": {"kind": "fedwhat"}})


def test_a_label_is_as_long_as_there_is_room_for_and_says_which_options() -> None:
    targets = [tuple(1.0 + (place == number) for place in range(60)) for number in range(2)]
    labels = [DiscoWeighting(target=target).label for target in targets]
    assert all(len(label) <= 200 and label.startswith("disco target=(") for label in labels)
    assert labels[0] != labels[1]
    assert DiscoWeighting(a=0.2, b=0.3).label == "disco a=0.2 b=0.3"
