"""Private training: gradients of single examples are clipped, noise has its size, what it costs is right."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import kstest, norm
from torch import nn
from torch.nn import functional

from shared.algorithms import load_algorithm
from shared.config import AlgorithmChoice, LocalTraining, RunConfig
from shared.data import Examples
from shared.models import build_model
from shared.problems import InvalidConfiguration
from shared.tasks import load_task
from shared.training import train
from shared.training.accountant import ORDERS, Spending, find_epsilon, find_noise
from shared.training.private import NoiseStream, PrivateGradients, PrivateRound, seeded_key
from shared.training.private_checks import check_private, check_private_model
from shared.training.workbench import ClientTask
from simulation.run import simulate
from tests.helpers.benches import make_bench

KEY = bytes(range(32))
SILENT = 1e-12
"""A noise multiplier of no noise to speak of."""


def make_config(**changes: Any) -> RunConfig:
    given = {"name": "private", "task": "digits", "rounds": 2, "partition": "iid:2", "dp": {"epsilon": 8.0}}
    return RunConfig.model_validate(given | changes)


# ---------------------------------------------------------------- what it costs


def test_rounds_beyond_those_planned_keep_to_the_runs_epsilon(tmp_path: Path) -> None:
    """A run can be made longer while it is under way: what was planned for its rounds is all there is."""
    bench = make_bench(make_config())
    plan = bench.plan_private(0)

    for round in (3, 5):
        for before in (plan, replace(plan, steps=plan.steps // 2)):
            asked = ClientTask(round, 0, 1.0, took_part=True, model=tmp_path / "unread")
            private = bench.make_private(asked, KEY, (before,))
            assert private is not None
            assert find_epsilon((before, private.spending), 1e-5) <= 8.0 * (1 + 1e-6)


def test_the_divergence_is_that_of_the_vectors_of_tensorflow_privacy() -> None:
    """``test_compute_rdp_sequence`` of its rdp_accountant_test: q 0.01, noise 2.5, 50 steps."""
    from opacus.accountants.analysis.rdp import compute_rdp

    found = compute_rdp(q=0.01, noise_multiplier=2.5, steps=50, orders=[1.5, 2.5, 5, 50, 100])
    assert found == pytest.approx([6.5007e-04, 1.0854e-03, 2.1808e-03, 2.3846e-02, 1.6742e02], rel=1e-4)


def test_epsilon_of_two_stages_is_that_of_opacus_docstring() -> None:
    """``opacus.accountants.analysis.rdp``: (q 1e-5, noise 1, 4 steps) and (1e-4, 3, 4), delta 1e-5: 0.336."""
    spent = [Spending(1.0, 1e-5, 4), Spending(3.0, 1e-4, 4)]
    assert find_epsilon(spent, 1e-5) == pytest.approx(0.336, abs=5e-4)


@pytest.mark.parametrize("spent", [(1.1, 256 / 60_000, 14_062), (0.7, 0.01, 1000), (4.0, 0.2, 200)])
def test_epsilon_is_a_bound_of_the_exact_one_and_not_far_from_it(spent: tuple[float, float, int]) -> None:
    """The exact one by another way: composed numerically as privacy loss variables (arXiv:2106.02848)."""
    from opacus.accountants import PRVAccountant

    exact = PRVAccountant()
    exact.history = [spent]
    lower = exact.get_epsilon(1e-5, eps_error=0.02) - 0.04
    assert lower <= find_epsilon([Spending(*spent)], 1e-5) <= 1.2 * (lower + 0.04)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 20), st.floats(1e-6, 1e-2))
def test_of_whole_data_epsilon_is_a_bound_of_the_gaussian_mechanisms(noise: float, delta: float) -> None:
    """The exact delta of one Gaussian at epsilon: Balle and Wang, 2018, theorem 8."""
    epsilon = find_epsilon([Spending(noise, 1.0, 1)], delta)
    half, whole = 1 / (2 * noise), epsilon * noise
    exact = norm.cdf(half - whole) - math.exp(epsilon) * norm.cdf(-half - whole)
    assert exact <= delta * (1 + 1e-9)


def test_noise_for_an_epsilon_is_the_least_and_makes_up_for_what_is_spent() -> None:
    noise = find_noise(3.0, 1e-5, 0.01, 1000)
    assert find_epsilon([Spending(noise, 0.01, 1000)], 1e-5) <= 3.0
    assert find_epsilon([Spending(0.995 * noise, 0.01, 1000)], 1e-5) > 3.0
    spent = (Spending(noise, 0.01, 400),)
    more = find_noise(3.0, 1e-5, 0.01, 700, spent)
    assert more > noise
    assert find_epsilon((*spent, Spending(more, 0.01, 700)), 1e-5) <= 3.0
    with pytest.raises(InvalidConfiguration, match="no noise keeps 10 steps below epsilon 3"):
        find_noise(3.0, 1e-5, 0.01, 10, (Spending(noise, 0.01, 2000),))


def test_the_conversion_is_opacus_own_and_warns_of_nothing() -> None:
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    for spent in (Spending(1.0, 0.02, 300), Spending(0.12, 0.5, 50), Spending(900.0, 1e-4, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            orders = list(ORDERS)
            rdp = compute_rdp(
                q=spent.rate, noise_multiplier=spent.noise_multiplier, steps=spent.steps, orders=orders
            )
            theirs, _ = get_privacy_spent(orders=orders, rdp=rdp, delta=1e-5)
        assert find_epsilon([spent], 1e-5) == pytest.approx(theirs, rel=1e-9)


def test_nothing_trained_costs_nothing_and_rounds_add_up() -> None:
    assert find_epsilon([], 1e-5) == find_epsilon([Spending(1.0, 0.1, 0)], 1e-5) == 0
    halves = [Spending(1.0, 0.01, 300), Spending(1.0, 0.01, 700)]
    assert find_epsilon(halves, 1e-5) == pytest.approx(find_epsilon([Spending(1.0, 0.01, 1000)], 1e-5))


# ---------------------------------------------------------------- samples and noise


def test_normal_numbers_are_normal_of_the_asked_deviation_and_follow_the_key() -> None:
    numbers = NoiseStream(KEY).normal(200_000, 2.5).numpy()
    assert kstest(numbers / 2.5, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
    assert np.array_equal(NoiseStream(KEY).normal(200_000, 2.5).numpy(), numbers)
    assert not np.array_equal(NoiseStream(seeded_key(0, 1, 1)).normal(200_000, 2.5).numpy(), numbers)


def test_a_stream_goes_on_and_never_repeats_itself() -> None:
    stream = NoiseStream(KEY)
    drawn = torch.cat([stream.uniform(1000) for _ in range(20)])
    assert len(set(drawn.tolist())) == len(drawn)
    assert float(drawn.min()) > 0
    assert float(drawn.max()) <= 1


def test_samples_are_poisson_samples() -> None:
    stream, taken = NoiseStream(KEY), torch.zeros(50)
    sizes = []
    for _ in range(4000):
        chosen = stream.choose(50, 0.1)
        taken[chosen] += 1
        sizes.append(len(chosen))
    assert float(np.mean(sizes)) == pytest.approx(5, abs=0.15)
    assert float(np.var(sizes)) == pytest.approx(50 * 0.1 * 0.9, rel=0.1)  # fixed batches have none
    assert 0 in sizes
    assert ((taken / 4000 - 0.1).abs() < 5 * math.sqrt(0.1 * 0.9 / 4000)).all()
    assert len(stream.choose(50, 1.0)) == 50


# ---------------------------------------------------------------- gradients


def make_gradients(model: nn.Module, clip: float, noise: float, examples: int, rate: float = 1.0) -> Any:
    private = PrivateRound(Spending(noise, rate, 1), clip, KEY)
    parameters = [each for each in model.parameters() if each.requires_grad]
    stream = NoiseStream(private.key)
    return PrivateGradients(model, parameters, functional.cross_entropy, private, stream, examples)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 10), st.floats(1e-2, 1e4), st.integers(0, 1000))
def test_no_example_moves_the_sum_by_more_than_the_clip(clip: float, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(5, 3)
    inputs, targets = torch.randn(6, 5, generator=generator) * size, torch.tensor([0, 1, 2, 0, 1, 2])
    make_gradients(model, clip, SILENT, 6).fill(inputs, targets)
    whole = flat(model) * 6
    make_gradients(model, clip, SILENT, 6).fill(inputs[:5], targets[:5])
    assert float((whole - flat(model) * 6).norm()) <= clip * (1 + 1e-4)


def test_clipped_gradients_are_those_that_opacus_clips() -> None:
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs, targets = 3 * torch.randn(8, 5), torch.arange(8) % 3
    make_gradients(model, 0.7, SILENT, 8).fill(inputs, targets)
    ours = flat(model)
    for parameter in model.parameters():
        parameter.grad_sample = torch.stack(  # type: ignore[attr-defined]
            [
                torch.autograd.grad(functional.cross_entropy(model(x[None]), y[None]), [parameter])[0]
                for x, y in zip(inputs, targets, strict=True)
            ]
        )
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    theirs = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=0.7, expected_batch_size=8)
    theirs.pre_step()
    assert torch.allclose(ours, flat(model), atol=1e-5)


def test_the_noise_on_a_gradient_has_its_deviation_whatever_was_drawn() -> None:
    model = nn.Linear(300, 300)
    gradients = make_gradients(model, 2.0, 1.5, examples=100, rate=0.2)
    assert gradients.fill(torch.empty(0, 300), torch.empty(0, dtype=torch.int64)) is None
    noise = flat(model).numpy() * 20  # divided by the expected size of the sample, drawn or not
    assert noise.std() == pytest.approx(3.0, rel=0.01)
    assert kstest(noise / 3.0, "norm").pvalue > 1e-3


def test_what_is_no_number_counts_as_nothing() -> None:
    model = nn.Linear(2, 2)
    gradients = make_gradients(model, 1.0, SILENT, 2)
    gradients.fill(torch.tensor([[math.inf, 1.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    assert bool(torch.isfinite(flat(model)).all())
    assert float(flat(model).norm()) * 2 <= 1 + 1e-4


def train_one_step(class_weights: tuple[float, ...] | None) -> dict[str, torch.Tensor]:
    """What one private step on all examples, as good as without clip and noise, moves a linear model by."""
    task = load_task("digits", {})
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    generator = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.randint(0, 17, (20, *task.input_shape), generator=generator), torch.arange(20) % 10
    )
    start = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    result = train(
        task=task,
        model=model,
        algorithm=load_algorithm(AlgorithmChoice(name="fedavg")),
        examples=examples,
        local=LocalTraining(
            steps=1, batch_size=20, learning_rate=1.0, momentum=0, weight_decay=0, class_weights=class_weights
        ),
        start=start,
        received={},
        kept={},
        first_time=True,
        relative_size=1.0,
        seed=0,
        round=1,
        index=0,
        device=torch.device("cpu"),
        clock=lambda: 0.0,
        private=PrivateRound(Spending(SILENT, 1.0, 1), 1e6, KEY),
    )
    return {name: value.double() for name, value in result.tensors["model"].items()}


def test_class_weights_multiply_the_losses_of_their_classes() -> None:
    """Undivided: the gradient is linear in the weights, that of one class apart from those of the others."""
    plain, heavy, twice = (train_one_step(given) for given in (None, (100.0, *[1.0] * 9), (2.0,) * 10))
    without = train_one_step((1e-6, *[1.0] * 9))
    for name in plain:
        assert torch.allclose(twice[name], 2 * plain[name], rtol=1e-4, atol=1e-6)
        first = plain[name] - without[name]  # what the examples of class 0 move
        assert float(first.abs().max()) > 1e-3
        assert torch.allclose(heavy[name], plain[name] + 99 * first, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["simple-cnn", pytest.param("resnet18-gn", marks=pytest.mark.slow)])
def test_large_samples_are_taken_in_parts_with_the_same_sum(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = build_model(name, 10, (3, 32, 32))
    inputs, targets = torch.randn(5, 3, 32, 32), torch.arange(5)
    made = []
    for numbers in (1 << 26, 1):
        monkeypatch.setattr("shared.training.private._MOST_NUMBERS", numbers)
        make_gradients(model, 1.0, SILENT, 5).fill(inputs, targets)
        made.append(flat(model))
    assert torch.allclose(made[0], made[1], atol=1e-6)


# ---------------------------------------------------------------- what it does not go with


CONFLICTS: Mapping[str, dict[str, Any]] = {
    "give one of epsilon and noise_multiplier, received none": {"dp": {}},
    "received epsilon and noise_multiplier": {"dp": {"epsilon": 1, "noise_multiplier": 1}},
    "less than or equal to 100": {"dp": {"epsilon": 1000}},
    "asks for losses on the training examples": {"weighting": {"kind": "qfedavg"}},
    "local.clip_norm clips the mean of a batch": {"local": {"clip_norm": 1.0}},
    "balanced goes by the site's label counts": {"local": {"class_weights": "balanced"}},
    "may tie one example to another": {"local": {"loss": "ours:loss"}},
}


@pytest.mark.parametrize("words", CONFLICTS)
def test_a_configuration_that_would_tell_more_is_refused(words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        make_config(**CONFLICTS[words])


@pytest.mark.parametrize("name", ["moon", "fedfm"])
def test_algorithms_that_add_terms_of_the_examples_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"dp: {name}"):
        check_private(make_config(algorithm=name), load_algorithm(AlgorithmChoice(name=name)))


def test_batch_normalisation_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidConfiguration, match=r"batch normalisation \(1\).*group normalisation"):
        check_private_model(make_config(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_native_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="the native kernels make no gradients of single"):
        simulate(make_config(), source=None, out=tmp_path / "out.jsonl", kernels="native")


# ---------------------------------------------------------------- whole runs


def simulated(folder: Path, **changes: Any) -> tuple[str, list[float]]:
    config = make_config(local={"epochs": 1, "batch_size": 64, "learning_rate": 0.2}, **changes)
    digest = simulate(config, source=None, out=folder / "out.jsonl", say=lambda _: None)
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]
    return digest, [row["accuracy"] for row in rows if row["kind"] == "round"]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_simulated_run_learns_and_can_be_made_again(tmp_path: Path, algorithm: str) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    first, accuracies = simulated(tmp_path / "one", algorithm=algorithm)
    assert accuracies[-1] > 0.5
    assert simulated(tmp_path / "two", algorithm=algorithm)[0] == first
    assert simulated(tmp_path / "three", algorithm=algorithm, seed=1)[0] != first
