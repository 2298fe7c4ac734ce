"""The local loop against a plain one, its determinism, its hooks and its refusals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.algorithms.base import Algorithm, AlgorithmParameters, Batch, LocalFinish, LocalRound
from shared.config import LocalTraining
from shared.data import Examples
from shared.problems import InvalidConfiguration
from shared.seeds import torch_generator
from shared.tasks import load_task
from shared.tasks.base import NoOptions, Split, Task
from shared.training import (
    LOCAL_BUFFERS,
    Diverged,
    LocalResult,
    Stopped,
    TrainProgress,
    train,
)
from shared.training.batches import planned_steps, steps_per_epoch
from shared.training.evaluation import evaluate
from shared.wire.tensors import state_of

CPU = torch.device("cpu")
FEDAVG = Algorithm[AlgorithmParameters](AlgorithmParameters())


class Points(Task):
    """150 points of four coordinates in three classes; training adds noise to them."""

    name = "points"
    classes = ("a", "b", "c")
    input_shape = (4,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        inputs = torch.randn(150, 4, generator=torch.Generator().manual_seed(5))
        return Examples(inputs, inputs[:, :3].argmax(dim=1))

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return inputs if generator is None else inputs + 0.1 * torch.randn(inputs.shape, generator=generator)


TASK = Points(NoOptions())
EXAMPLES = TASK.load("train", None, 0)


def linear() -> nn.Module:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        model.bias.zero_()
    return model


def run(model: nn.Module | None = None, **changes: Any) -> LocalResult:
    """One round of client 2 in round 3 with seed 7, unless said otherwise."""
    model = linear() if model is None else model
    ticks = itertools.count()
    arguments: dict[str, Any] = {
        "task": TASK,
        "model": model,
        "algorithm": FEDAVG,
        "examples": EXAMPLES,
        "local": LocalTraining(epochs=2, learning_rate=0.1),
        "start": state_of(model),
        "received": {},
        "kept": {},
        "first_time": True,
        "relative_size": 1.0,
        "seed": 7,
        "round": 3,
        "index": 2,
        "device": CPU,
        "clock": lambda: float(next(ticks)),
    }
    return train(**(arguments | changes))


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------- the numbers


def test_it_is_sgd_with_momentum_and_weight_decay_over_the_seeded_batches() -> None:
    local = LocalTraining(epochs=2, batch_size=64, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    weight, bias = (value.clone() for value in state_of(linear()).values())
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    noise, losses = torch_generator(7, "augmentation", 3, 2), []
    for epoch in (1, 2):
        order = torch.randperm(150, generator=torch_generator(7, "batches", 3, 2, epoch))
        for batch in (order[:64], order[64:128]):  # the last 22 are dropped
            inputs = TASK.prepare(EXAMPLES.inputs[batch], noise)
            logits = inputs @ weight.T + bias
            targets = EXAMPLES.targets[batch]
            losses.append(functional.cross_entropy(logits, targets).item())
            error = (logits.softmax(dim=1) - functional.one_hot(targets, 3)) / 64  # dL/dlogits, (64, 3)
            for value, v, gradient in zip(
                (weight, bias), speed, (error.T @ inputs, error.sum(0)), strict=True
            ):
                v.mul_(0.9).add_(gradient + 0.01 * value)
                value.sub_(0.1 * v)
    result = run(local=local)
    torch.testing.assert_close(result.tensors["model"], {"weight": weight, "bias": bias})
    assert result.loss == pytest.approx(sum(losses) / 4)
    assert (result.steps, result.examples) == (4, 150)
    assert result.seconds == 1.0
    assert result.kept == {}


@pytest.mark.parametrize(
    ("examples", "drop_last", "batches"),
    [
        (150, True, 2),
        (150, False, 3),
        (128, True, 2),
        (128, False, 2),
        (10, True, 1),
        (10, False, 1),
        (0, False, 0),
    ],
)
def test_batches_of_an_epoch(examples: int, drop_last: bool, batches: int) -> None:
    assert steps_per_epoch(examples, 64, drop_last) == batches
    local = LocalTraining(epochs=3, drop_last=drop_last)
    assert planned_steps(local, examples, 0, 1, 0) == 3 * batches
    assert run(local=local, examples=EXAMPLES.subset(torch.arange(examples))).steps == 3 * batches


def test_steps_end_in_the_middle_of_an_epoch_as_a_prefix_of_the_same_batches() -> None:
    seen: list[TrainProgress] = []
    by_steps = run(local=LocalTraining(steps=3), on_progress=seen.append)
    assert by_steps.steps == 3
    assert [(p.epoch, p.epochs, p.step, p.steps) for p in seen] == [(1, 2, 1, 3), (1, 2, 2, 3), (2, 2, 3, 3)]
    assert same(
        run(local=LocalTraining(steps=4)).tensors["model"],
        run(local=LocalTraining(epochs=2)).tensors["model"],
    )


def test_a_range_draws_each_clients_steps_in_each_round_evenly() -> None:
    local = LocalTraining(steps_range=(3, 6))
    drawn = [planned_steps(local, 150, 7, round, index) for round in range(1, 41) for index in range(10)]
    number = [drawn.count(steps) for steps in (3, 4, 5, 6)]
    assert sum(number) == 400
    assert min(number) > 70  # 100 expected, deviation 8.7
    assert drawn[:10] != drawn[10:20]
    assert drawn[0] == planned_steps(local, 150, 7, 1, 0)
    assert planned_steps(local, 0, 7, 1, 0) == 0
    planned = planned_steps(local, 150, 7, 3, 2)  # as `run` has it
    seen: list[TrainProgress] = []
    assert run(local=local, on_progress=seen.append).steps == planned
    assert (seen[-1].step, seen[-1].steps, seen[-1].epochs) == (planned, planned, (planned + 1) // 2)
    assert same(run(local=local).tensors["model"], run(local=LocalTraining(steps=planned)).tensors["model"])


@pytest.mark.parametrize("local", [LocalTraining(epochs=0), LocalTraining(steps=0)])
def test_no_steps_give_the_start_back(local: LocalTraining) -> None:
    start = {name: value + 1 for name, value in state_of(linear()).items()}
    result = run(local=local, start=start)
    assert same(result.tensors["model"], start)
    assert (result.steps, result.loss) == (0, None)


def test_no_examples_give_the_start_back() -> None:
    result = run(examples=EXAMPLES.subset(torch.tensor([])), local=LocalTraining(steps=5))
    assert same(result.tensors["model"], state_of(linear()))
    assert (result.steps, result.examples, result.loss) == (0, 0, None)


def test_clipping_bounds_the_norm_of_the_whole_gradient() -> None:
    local = LocalTraining(steps=1, learning_rate=0.5, weight_decay=0, clip_norm=1e-3)
    moved = [
        value - before
        for value, before in zip(
            run(local=local).tensors["model"].values(), state_of(linear()).values(), strict=True
        )
    ]
    norm = math.sqrt(sum(change.square().sum().item() for change in moved))
    assert norm == pytest.approx(0.5 * 1e-3, rel=1e-3)


def test_it_learns_digits() -> None:
    task = load_task("digits")
    model = task.build_model(None, seed=0)
    local = LocalTraining(epochs=15, learning_rate=0.05)
    run(model, task=task, examples=task.load("train", None, 0), local=local)
    accuracy = evaluate(task=task, model=model, examples=task.load("test", None, 0), device=CPU).accuracy
    assert accuracy is not None
    assert accuracy > 0.95


# ---------------------------------------------------------------- determinism


class Forgetful(nn.Module):
    """Dropout and batch normalisation between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layers(inputs)
        return out


def test_repetition_gives_the_same_bits_whatever_the_global_generator_did() -> None:
    torch.manual_seed(1)
    model = Forgetful()
    start = state_of(model)
    first = run(model, start=start)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    second = run(model, start=start)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first.tensors["model"], second.tensors["model"])
    assert first.loss == second.loss


@pytest.mark.parametrize("change", [{"seed": 8}, {"round": 4}, {"index": 3}])
def test_seed_round_and_client_each_change_the_training(change: dict[str, Any]) -> None:
    assert not same(run(**change).tensors["model"], run().tensors["model"])


def test_a_result_is_not_changed_by_later_training() -> None:
    model = linear()
    first = run(model)
    copies = {name: value.clone() for name, value in first.tensors["model"].items()}
    run(model, index=1)
    assert same(first.tensors["model"], copies)


# ---------------------------------------------------------------- hooks


class Recorder(Algorithm[AlgorithmParameters]):
    """Notes every call, adds to the loss and to the gradient, sends and keeps a group."""

    citation = "this test"
    downloads = ("server",)
    uploads = ("sent",)
    keeps = ("mine",)

    def __init__(self) -> None:
        super().__init__(AlgorithmParameters())
        self.calls: list[str] = []

    def begin(self, local: LocalRound) -> None:
        self.calls.append("begin")
        local.scratch["first"] = local.first_time

    def extra_loss(self, local: LocalRound, batch: Batch) -> Tensor | None:
        self.calls.append(f"loss {len(batch.targets)} {tuple(batch.outputs.shape)}")
        return 0 * batch.outputs.sum()

    def on_gradient(self, local: LocalRound) -> None:
        self.calls.append(f"gradient {local.steps}")
        for name, parameter in local.parameters.items():
            parameter.grad = local.received["server"][name] + 1

    def on_step(self, local: LocalRound) -> None:
        self.calls.append(f"step {local.steps}")

    def finish(self, local: LocalRound) -> LocalFinish:
        self.calls.append("finish")
        moved = {name: parameter - local.start[name] for name, parameter in local.parameters.items()}
        return LocalFinish(
            uploads={"sent": moved}, kept={"mine": {n: v + 1 for n, v in local.kept["mine"].items()}}
        )


PLAIN = LocalTraining(steps=2, learning_rate=0.25, momentum=0, weight_decay=0)


def test_hooks_come_in_order_and_the_gradient_they_leave_is_used() -> None:
    algorithm = Recorder()
    result = run(algorithm=algorithm, local=PLAIN)
    one_batch = ["loss 64 (64, 3)", "gradient 0", "step 1"]
    assert algorithm.calls == ["begin", *one_batch, "loss 64 (64, 3)", "gradient 1", "step 2", "finish"]
    assert result.tensors.keys() == {"model", "sent"}
    for name, value in result.tensors["sent"].items():  # two steps of 0.25 down a gradient of 0 + 1
        torch.testing.assert_close(value, torch.full_like(value, -0.5))
        assert not value.requires_grad
        torch.testing.assert_close(result.tensors["model"][name], state_of(linear())[name] - 0.5)
    assert all(torch.equal(value, torch.ones_like(value)) for value in result.kept["mine"].values())


def test_received_and_kept_groups_reach_the_algorithm() -> None:
    twos = {name: torch.full_like(value, 2.0) for name, value in state_of(linear()).items()}
    result = run(algorithm=Recorder(), local=PLAIN, received={"server": twos}, kept={"mine": twos})
    for value in result.tensors["sent"].values():
        torch.testing.assert_close(value, torch.full_like(value, -0.25 * 3 * 2))
    assert all(torch.equal(value, torch.full_like(value, 3.0)) for value in result.kept["mine"].values())


def test_an_extra_loss_moves_the_parameters_and_is_not_reported() -> None:
    class Pull(Algorithm[AlgorithmParameters]):
        citation = "this test"

        def extra_loss(self, local: LocalRound, batch: Batch) -> Tensor | None:
            return 3 * sum((parameter.sum() for parameter in local.parameters.values()), torch.zeros(()))

    local = LocalTraining(steps=1, learning_rate=0.25, momentum=0, weight_decay=0)
    plain, pulled = run(local=local), run(local=local, algorithm=Pull(AlgorithmParameters()))
    assert pulled.loss == plain.loss
    for name, value in plain.tensors["model"].items():
        torch.testing.assert_close(pulled.tensors["model"][name], value - 0.75)


def test_an_undeclared_group_is_a_mistake_of_the_algorithm() -> None:
    class Undeclared(Recorder):
        uploads: tuple[str, ...] = ()  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"uploads \[\], but finish\(\) returned \['sent'\]"):
        run(algorithm=Undeclared(), local=PLAIN)


# ---------------------------------------------------------------- stopping, progress, divergence


def test_it_stops_before_the_next_batch() -> None:
    seen: list[TrainProgress] = []
    with pytest.raises(Stopped, match="before step 3 of 4"):
        run(on_progress=seen.append, should_stop=lambda: len(seen) == 2)


def test_progress_carries_the_running_mean_loss() -> None:
    seen: list[TrainProgress] = []
    result = run(on_progress=seen.append)
    assert [(p.epoch, p.step) for p in seen] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert seen[0].loss == run(local=LocalTraining(steps=1)).loss
    assert seen[-1].loss == result.loss


def test_a_loss_that_is_no_number_says_where_and_what_to_do() -> None:
    with pytest.raises(Diverged, match=r"at step \d+ of 40 in round 3\. Lower local\.learning_rate"):
        run(local=LocalTraining(epochs=20, learning_rate=1e38))


def test_a_parameter_that_overflows_in_the_last_step_is_seen() -> None:
    class Overflow(Recorder):
        def on_gradient(self, local: LocalRound) -> None:
            for parameter in local.parameters.values():
                parameter.grad = torch.full_like(parameter, math.inf)

    with pytest.raises(Diverged, match="tensor 'weight' holds NaN or infinity"):
        run(algorithm=Overflow(), local=LocalTraining(steps=1))


# ---------------------------------------------------------------- kinds of tensors, precision


def test_running_statistics_are_sent_or_kept() -> None:
    model = Forgetful()
    start = state_of(model)
    running = {"layers.1.running_mean", "layers.1.running_var"}
    sent = run(model, start=start)
    assert sent.tensors["model"].keys() == start.keys() - {"layers.1.num_batches_tracked"}
    assert not torch.equal(sent.tensors["model"]["layers.1.running_mean"], start["layers.1.running_mean"])
    assert sent.kept == {}
    kept = run(model, start=start, buffers="keep-local")
    assert kept.tensors["model"].keys() == start.keys() - running - {"layers.1.num_batches_tracked"}
    assert kept.kept[LOCAL_BUFFERS].keys() == running


def test_kept_statistics_come_back_in_the_next_round() -> None:
    model = Forgetful()
    mine = {"layers.1.running_mean": torch.full((8,), 3.0), "layers.1.running_var": torch.full((8,), 4.0)}
    untrained = LocalTraining(epochs=0)
    result = run(model, kept={LOCAL_BUFFERS: mine}, buffers="keep-local", local=untrained)
    assert same(result.kept[LOCAL_BUFFERS], mine)
    averaged = run(model, start=state_of(Forgetful()), kept={LOCAL_BUFFERS: mine}, local=untrained)
    assert torch.equal(averaged.tensors["model"]["layers.1.running_mean"], torch.zeros(8))


def test_frozen_parameters_neither_move_nor_travel() -> None:
    model = linear()
    assert isinstance(model.bias, nn.Parameter)
    model.bias.requires_grad_(False)
    result = run(model)
    assert result.tensors["model"].keys() == {"weight"}
    assert torch.equal(model.bias, torch.zeros(3))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="Linear has no trainable parameter"):
        run(linear().requires_grad_(False))


def test_tied_weights_travel_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    result = run(model)
    assert result.tensors["model"].keys() == {"0.weight", "0.bias", "1.bias"}
    assert model[1].weight is model[0].weight


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains_float32_parameters(precision: str) -> None:
    exact, rounded = run(), run(precision=precision)
    for name, value in rounded.tensors["model"].items():
        assert value.dtype is torch.float32
        assert not torch.equal(value, exact.tensors["model"][name])
        torch.testing.assert_close(value, exact.tensors["model"][name], atol=0.02, rtol=0.02)


@pytest.mark.usefixtures("one_thread")
def test_tiny_numbers_slow_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush them")
    halves: list[float] = []
    flushed = run(on_progress=lambda _: halves.append(float(torch.tensor([2.0**-126]).mul(0.5))))
    monkeypatch.setattr("shared.training.flush_denormals", nullcontext)
    kept = run()
    assert set(halves) == {0.0}
    assert same(flushed.tensors["model"], kept.tensors["model"])
