from __future__ import annotations

import pytest
import torch
from torch import nn

from shared.problems import InvalidConfiguration, MissingTensor, UnknownTensor, WrongDtype, WrongShape
from shared.schemas import TensorKind, TensorSpec
from shared.wire import tensors


class Awkward(nn.Module):
    """Tied, frozen, 0-dimensional, bfloat16, batch-norm, integer, not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.narrow = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.zeros(7), persistent=False)
        self.register_buffer("absent", None)


def test_the_manifest_lists_every_unique_persistent_tensor() -> None:
    expected = [
        ("temperature", (), "F32", TensorKind.PARAMETER),
        ("narrow", (2,), "BF16", TensorKind.PARAMETER),
        ("frozen", (2,), "F32", TensorKind.FROZEN),
        ("embedding.weight", (5, 3), "F32", TensorKind.PARAMETER),  # and head.weight, tied to it
        ("norm.weight", (3,), "F32", TensorKind.PARAMETER),
        ("norm.bias", (3,), "F32", TensorKind.PARAMETER),
        ("mask", (2,), "BOOL", TensorKind.INTEGER),
        ("norm.running_mean", (3,), "F32", TensorKind.BUFFER),
        ("norm.running_var", (3,), "F32", TensorKind.BUFFER),
        ("norm.num_batches_tracked", (), "I64", TensorKind.INTEGER),
    ]
    assert tensors.manifest_of(Awkward()) == tuple(
        TensorSpec(name=name, shape=shape, dtype=dtype, kind=kind) for name, shape, dtype, kind in expected
    )


def test_state_is_a_copy_of_the_manifest_tensors() -> None:
    model = Awkward()
    state = tensors.state_of(model)
    assert list(state) == [spec.name for spec in tensors.manifest_of(model)]
    assert not any(value.requires_grad for value in state.values())
    with torch.no_grad():
        model.temperature.add_(1)
    assert state["temperature"].item() == 2.0


def test_state_is_contiguous_whatever_the_model_prefers() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    state = tensors.state_of(model)
    assert state["weight"].is_contiguous()
    assert torch.equal(state["weight"], model.weight)


def test_trainable_gives_the_live_parameters_once() -> None:
    model = Awkward()
    live = tensors.trainable(model)
    assert list(live) == ["temperature", "narrow", "embedding.weight", "norm.weight", "norm.bias"]
    assert live["embedding.weight"] is model.head.weight


def test_loading_restores_the_state_and_keeps_ties() -> None:
    model = Awkward()
    state = {name: torch.ones_like(value) for name, value in tensors.state_of(model).items()}
    parameters = {id(parameter) for parameter in model.parameters()}
    tensors.load_into(model, state)
    assert all(torch.equal(value, state[name]) for name, value in tensors.state_of(model).items())
    assert model.head.weight is model.embedding.weight
    assert {id(parameter) for parameter in model.parameters()} == parameters
    assert all(parameter.requires_grad for parameter in tensors.trainable(model).values())


def test_a_missing_tensor_is_named_and_changes_nothing() -> None:
    model = Awkward()
    with pytest.raises(MissingTensor, match="'narrow'"):
        tensors.load_into(model, {"temperature": torch.tensor(5.0)})
    assert model.temperature.item() == 2.0


@pytest.mark.parametrize(
    ("name", "value", "problem", "message"),
    [
        ("head.weight", torch.ones(5, 3), UnknownTensor, "no tensor 'head.weight'"),
        ("scratch", torch.ones(7), UnknownTensor, "no tensor 'scratch'"),
        ("narrow", torch.ones(1, dtype=torch.bfloat16), WrongShape, r"'narrow' has shape \[1\].* \[2\]"),
        ("narrow", torch.ones(2), WrongDtype, r"'narrow' has dtype torch.float32.* torch.bfloat16"),
    ],
)
def test_a_wrong_tensor_changes_nothing(
    name: str, value: torch.Tensor, problem: type[Exception], message: str
) -> None:
    model = Awkward()
    with pytest.raises(problem, match=message):
        tensors.load_into(model, tensors.state_of(model) | {"temperature": torch.tensor(5.0), name: value})
    assert model.temperature.item() == 2.0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2, dtype=torch.complex64), r"'weight' has dtype torch.complex64"),
        (nn.Linear(2, 2).to(torch.float8_e5m2), r"'weight' has dtype torch.float8_e5m2"),
    ],
)
def test_a_model_that_no_file_can_hold_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        tensors.manifest_of(model)


def test_a_lazy_model_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="'weight' has no shape yet"):
        tensors.manifest_of(nn.LazyLinear(2))
