"""Variants of the methods, against their formulas written out for the quadratic problem.

There, tau steps of plain SGD from w on ``h (w - m)^2 / 2`` end at ``m + (1 - lr h)^tau (w - m)``, and a term
linear or quadratic in w moves h and m only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.algorithms.base import LocalRound
from shared.algorithms.fednova import accumulated
from shared.algorithms.fedopt import _find_root
from shared.algorithms.fedprox import FedProx, FedProxParameters
from shared.training.sgd import SGD
from tests.helpers.quadratic_problem import FULL, PART, VECTORS, Federation, Round

H, M, W0 = (torch.tensor(VECTORS[name], dtype=torch.float64) for name in ("h", "m", "w0"))
LR: float = VECTORS["lr"]
TAU421 = (4, 2, 1)
SIZES = [3 * n for n in VECTORS["n"]]  # omega_k, mean 1


def _descended(w: Tensor, h: Tensor, m: Tensor, steps: int) -> Tensor:
    return m + (1 - LR * h) ** steps * (w - m)


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


# ---------------------------------------------------------------- FedAvgM


@pytest.mark.parametrize("damped", [False, True])
def test_nesterov_is_torchs_on_the_mean_displacement(damped: bool, tmp_path: Path) -> None:
    parameters = {"beta": 0.5, "server_learning_rate": 0.7, "damped": damped, "nesterov": True}
    federation = Federation(tmp_path, "fedavgm", parameters, "n")
    x = torch.nn.Parameter(W0.clone())
    optimizer = torch.optim.SGD([x], lr=0.7, momentum=0.5, nesterov=True)
    for after in federation.rounds(FULL):
        mean = sum(n * _descended(x.detach(), H[k], M[k], 2) for k, n in enumerate(VECTORS["n"]))
        x.grad = (x.detach() - mean) * (0.5 if damped else 1.0)
        optimizer.step()
        _close(after.model, x.detach())


# ---------------------------------------------------------------- FedNova's proximal variant


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_normaliser_is_the_displacement_of_constant_gradients(steps: int, momentum: float) -> None:
    """By the real optimizer and FedProx's real hook: gradients of 1, each counted as |a| counts it."""
    mu, parameter = 0.5, torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    start = {"w": parameter.detach().clone()}
    local = LocalRound(torch.nn.Module(), {"w": parameter}, start, {}, {}, True, 1.0, LR, momentum)
    optimizer = SGD([parameter], LR, momentum)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        FedProx(FedProxParameters(mu=mu)).on_gradient(local)
        optimizer.step()
    assert -float(parameter.detach()) / LR == pytest.approx(accumulated(steps, momentum, LR * mu), rel=1e-12)


def test_normalised_fedprox(tmp_path: Path) -> None:
    """4, 2 and 1 steps, |a| in closed form: x - tau_eff sum p_k (x - y_k) / |a_k|."""
    mu, x = 0.5, W0
    after = Federation(tmp_path, "fedprox", {"mu": mu, "normalised": True}, "n", TAU421).last(FULL[:1])
    norms = [(1 - (1 - LR * mu) ** steps) / (LR * mu) for steps in TAU421]
    effective = sum(n * norm for n, norm in zip(VECTORS["n"], norms, strict=True))
    moved = torch.zeros(2, dtype=torch.float64)
    for k, steps in enumerate(TAU421):
        y = _descended(x, H[k] + mu, (H[k] * M[k] + mu * x) / (H[k] + mu), steps)
        moved += VECTORS["n"][k] * (x - y) / norms[k]
    _close(after.model, x - effective * moved)


# ---------------------------------------------------------------- FedDyn's two alphas


def _two_alphas(alpha: float, participation: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Model and mean: the quadratic term with alpha, the linear ones with alpha / omega_k; uniform means."""
    x, dual, drift = W0, torch.zeros(3, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for present in participation:
        moved = torch.zeros(3, 2, dtype=torch.float64)
        for k in present:
            scaled = alpha / SIZES[k]
            h = H[k] + alpha
            y = _descended(x, h, (H[k] * M[k] + dual[k] + scaled * x) / h, 2)
            moved[k] = y - x
            dual[k] -= scaled * moved[k]
        drift = drift + moved.sum(0) / 3
        mean = x + moved.sum(0) / len(present)
        x = mean + drift
        yield x, mean


@pytest.mark.parametrize("participation", [FULL, PART], ids=["full", "part"])
def test_feddyn_with_two_alphas(participation: Sequence[Sequence[int]], tmp_path: Path) -> None:
    parameters = {"alpha": 0.2, "alpha_scaling": "size", "scaled_terms": "linear"}
    found = Federation(tmp_path, "feddyn", parameters, "u").rounds(participation)
    for after, (model, mean) in zip(found, _two_alphas(0.2, participation), strict=True):
        _close(after.model, model)
        _close(after.scored, mean)


# ---------------------------------------------------------------- SCAFFOLD's random controls


def _rounds(folder: Path, participation: Any, **parameters: Any) -> list[Round]:
    folder.mkdir()
    return list(Federation(folder, "scaffold", parameters, "n").rounds(participation))


def _random_network(folder: Path) -> Tensor:
    """R: what a first round leaves out of the control that is kept."""
    zero, drawn = _rounds(folder / "a", FULL[:1]), _rounds(folder / "b", FULL[:1], random_controls=0)
    differences: list[Tensor] = [
        z["control"] - d["control"] for z, d in zip(zero[0].kept, drawn[0].kept, strict=True)
    ]
    for other in differences[1:]:
        _close(other, differences[0])
    return differences[0]


def test_random_controls_do_not_matter_when_everybody_takes_part(tmp_path: Path) -> None:
    zero, drawn = _rounds(tmp_path / "a", FULL), _rounds(tmp_path / "b", FULL, random_controls=0)
    for one, other in zip(zero, drawn, strict=True):
        _close(one.model, other.model)
    assert not torch.equal(zero[-1].server["control"], drawn[-1].server["control"])


def test_random_controls_are_literally_those_of_algorithm_1(tmp_path: Path) -> None:
    """c and every c_k start as R; rounds 2 and 3 have a client that was away."""
    offset = _random_network(tmp_path)
    x, c, own = W0, offset, [offset] * 3
    for present, after in zip(PART, _rounds(tmp_path / "c", PART, random_controls=0), strict=True):
        old, changes = (x, c), []
        n = {k: VECTORS["n"][k] / sum(VECTORS["n"][j] for j in present) for k in present}
        for k in present:
            y = _descended(old[0], H[k], M[k] - (old[1] - own[k]) / H[k], 2)
            new = own[k] - old[1] + (old[0] - y) / (2 * LR)
            changes.append(new - own[k])
            own[k] = new
            x = x + n[k] * (y - old[0])
        c = c + torch.stack(changes).sum(0) / 3
        _close(after.model, x)
        _close(after.server["control"] + offset, c)
    assert float(offset.abs().min()) > 0.01
    unbiased = _rounds(tmp_path / "d", PART)
    assert not torch.allclose(unbiased[-1].model, x, atol=1e-3)


def test_the_seed_of_the_random_controls_counts(tmp_path: Path) -> None:
    one, other = (_rounds(tmp_path / str(seed), PART, random_controls=seed)[-1].model for seed in (0, 1))
    assert not torch.equal(one, other)


# ---------------------------------------------------------------- FedDC without its gradient term


def test_feddc_without_gradient_term_sends_the_model_alone(tmp_path: Path) -> None:
    after = Federation(tmp_path, "feddc", {"gradient_term": False}, "u").last(PART)
    assert set(after.server) == {"drift"}
    assert all(set(kept) == {"drift"} for kept in after.kept)


def test_roots_are_rounded_correctly_on_every_processor() -> None:
    """A double's root, rounded to float32, is the root rounded once: it has more than twice the digits."""
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    expected = torch.tensor([math.sqrt(value) for value in values.tolist()], dtype=torch.float32)
    assert torch.equal(_find_root(values), expected)
    assert torch.equal(_find_root(torch.tensor(2.25)), torch.tensor(1.5))
