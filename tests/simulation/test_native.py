"""The native kernels: the same training as PyTorch's own, but for rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared import wire
from shared.config import RunConfig
from shared.models.simple_cnn import SimpleCNN
from shared.problems import InvalidConfiguration
from shared.tasks.base import NoOptions, Task
from shared.tasks.cifar10 import CIFAR10
from shared.tasks.fashion_mnist import FashionMNIST
from shared.tasks.images import ImageTask
from simulation.engines.in_process import InProcess
from simulation.federation import Federation
from simulation.jobs import WorkbenchSpec
from simulation.kernels import KernelsName
from simulation.kernels.native import accelerate, library
from simulation.kernels.native.images import accelerate_images
from simulation.kernels.native.layers import accelerate_rows
from simulation.run import simulate
from tests.helpers.pictures import Pictures

ALGORITHMS = ("fedavg", "fedavgm", "fedopt", "fednova", "fedprox", "scaffold", "feddyn", "feddc", "moon")


def row(inputs: int, outputs: int, kernel: tuple[int, int]) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel), nn.ReLU(), nn.MaxPool2d(2))


def gradients(layers: nn.Module, images: Tensor, wanted: Tensor) -> list[Tensor]:
    """Of the images, the kernels and the bias, and what came out."""
    images = images.clone().requires_grad_()
    layers.zero_grad()
    out = layers(images)
    out.backward(wanted)
    return [out.detach(), *(p.grad for p in (images, *layers.parameters()) if p.grad is not None)]


def accelerated(layers: nn.Module) -> int:
    """How many layers with parameters the kernels compute."""
    return sum(len(block.layers) for block in accelerate_rows(layers))


@given(
    batch=st.integers(1, 150),
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 17),
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    spare=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_row_and_its_gradients(
    batch: int, inputs: int, outputs: int, kernel: tuple[int, int], spare: tuple[int, int], seed: int
) -> None:
    torch.manual_seed(seed)
    ours, plain = row(inputs, outputs, kernel), row(inputs, outputs, kernel)
    plain.load_state_dict(ours.state_dict())
    assert accelerated(ours) == 1
    images = torch.randn(batch, inputs, kernel[0] + spare[0], kernel[1] + spare[1])
    wanted = torch.randn_like(plain(images))
    for one, other in zip(gradients(ours, images, wanted), gradients(plain, images, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


def test_two_rows_one_after_the_other_of_unusual_strides() -> None:
    torch.manual_seed(0)
    ours, plain = (nn.Sequential(*row(3, 6, (5, 5)), *row(6, 16, (5, 5)), nn.Flatten()) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    assert accelerated(ours) == 2
    images = torch.randn(10, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    wanted = torch.randn(10, 400)
    for one, other in zip(gradients(ours, images, wanted), gradients(plain, images, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def before_relu(layers: nn.Sequential, images: Tensor) -> Iterator[Tensor]:
    values = images
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            yield values
        values = layer(values)


@given(
    batch=st.integers(1, 100),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    last=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_linear_layers_behind_a_row(batch: int, sizes: list[int], last: bool, seed: int) -> None:
    torch.manual_seed(seed)

    def network() -> nn.Sequential:
        layers: list[nn.Module] = [*row(2, 3, (3, 2)), nn.Flatten()]
        for before, after in pairwise([3 * 2 * 3, *sizes]):
            layers += nn.Linear(before, after), nn.ReLU()
        return nn.Sequential(*(layers if last else layers[:-1]))

    ours, plain = network(), network()
    plain.load_state_dict(ours.state_dict())
    assert accelerated(ours) == 1 + len(sizes)
    images, wanted = torch.randn(batch, 2, 6, 7), torch.randn(batch, sizes[-1])
    assume(all(bool((value.abs() > 1e-5).all()) for value in before_relu(plain, images)))  # rounding decides
    for one, other in zip(gradients(ours, images, wanted), gradients(plain, images, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


def test_who_listens_at_a_layer_hears_what_it_gets() -> None:
    torch.manual_seed(0)
    ours, plain = SimpleCNN(10, (1, 28, 28)), SimpleCNN(10, (1, 28, 28))
    plain.load_state_dict(ours.state_dict())
    network = accelerate(ours)
    images, heard = torch.randn(5, 1, 28, 28), list[Tensor]()
    expected = [cast(nn.Sequential, plain.features)[:7](images), plain(images)]
    inner = cast(nn.Sequential, ours.features)[7]
    handle = inner.register_forward_pre_hook(lambda module, given: heard.append(given[0]))
    torch.testing.assert_close([ours(images), heard[0]], expected[::-1])
    assert network is not None
    assert network(images, torch.arange(5)) is None
    handle.remove()
    torch.testing.assert_close(ours(images), expected[1])
    assert network(images, torch.arange(5)) is not None
    assert len(heard) == 1


def test_a_layer_in_two_places_stays_as_it_is() -> None:
    torch.manual_seed(0)
    relu, linear = nn.ReLU(), nn.Linear(4, 4)

    def network() -> nn.Sequential:
        return nn.Sequential(
            *row(1, 2, (3, 3)), nn.Conv2d(2, 1, 2), relu, nn.MaxPool2d(2), nn.Flatten(), linear, linear, relu
        )

    ours, plain = network(), network()
    plain.load_state_dict(ours.state_dict())
    assert accelerated(ours) == 1
    images = torch.randn(3, 1, 12, 12)
    torch.testing.assert_close(ours(images), plain(images))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("batch", [1, 16, 50, 64])
def test_all_gradients_of_a_network_at_once(shape: tuple[int, ...], batch: int) -> None:
    torch.manual_seed(batch)
    ours, plain = SimpleCNN(10, shape), SimpleCNN(10, shape)
    network = accelerate(ours)
    assert network is not None
    for _ in range(2):  # in the memory that is there the second time
        plain.load_state_dict({name: torch.randn_like(p) * 0.1 for name, p in plain.named_parameters()})
        ours.load_state_dict(plain.state_dict())
        images, labels = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        loss = nn.functional.cross_entropy(plain(images), labels)
        plain.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert network(images, labels) == pytest.approx(loss.item(), rel=1e-5)
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_what_is_no_number_is_no_loss() -> None:
    ours = SimpleCNN(10, (1, 28, 28))
    network = accelerate(ours)
    images = torch.randn(20, 1, 28, 28)
    images[3, 0, 5, 5] = torch.nan
    assert network is not None
    assert math.isnan(network(images, torch.zeros(20, dtype=torch.int64)) or 0.0)


def test_what_autograd_has_to_do() -> None:
    images, labels = torch.randn(4, 1, 28, 28), torch.arange(4)
    ours = SimpleCNN(10, (1, 28, 28))
    network = accelerate(ours)
    assert network is not None
    refused = [(images.double(), labels), (images[0], labels), (images, labels.int()), (images, labels[:3])]
    refused += [(images, labels + 7), (images, labels - 1), (images[:0], labels[:0])]
    assert [network(*given) for given in refused] == [None] * len(refused)
    cast(nn.Linear, ours.classifier).bias.requires_grad_(False)
    assert network(images, labels) is None
    assert all(parameter.grad is None for parameter in ours.parameters())


class Weighed(Pictures):
    """Has a loss of its own."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().loss(outputs, targets)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"algorithm": "scaffold"}, True),
        ({"algorithm": "moon"}, False),
        ({"local": {"steps": 2, "batch_size": 8, "class_weights": "balanced"}}, False),
        ({"task": "tests.simulation.test_native:Weighed"}, False),
    ],
)
def test_at_once_where_the_loss_is_the_cross_entropy(
    changes: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    given = config(**{"local": {"steps": 2, "batch_size": 8}} | changes)
    workbench = WorkbenchSpec.of(given, kernels="native").build()
    network, losses = workbench.gradients, list[float | None]()
    assert network is not None

    def listen(inputs: Tensor, targets: Tensor) -> float | None:
        losses.append(network(inputs, targets))
        return losses[-1]

    workbench.gradients = listen
    for _ in Federation(given, workbench, tmp_path).train_rounds(InProcess(workbench)):
        pass
    assert len(losses) == (2 * 2 * workbench.clients if expected else 0)
    assert all(loss is not None for loss in losses)


def test_equal_input_gives_equal_bits() -> None:
    torch.manual_seed(0)
    layers, images, wanted = row(3, 6, (5, 5)), torch.randn(64, 3, 32, 32), torch.randn(64, 6, 14, 14)
    accelerate(layers)
    first, *others = (gradients(layers, images, wanted) for _ in range(3))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_what_is_no_number_stays_none() -> None:
    layers, images = row(1, 2, (3, 3)), torch.ones(4, 1, 8, 8)
    accelerate(layers)
    images[1] = torch.nan
    out = layers(images)
    assert [bool(image.isnan().all()) for image in out] == [False, True, False, False]


@pytest.mark.parametrize("images", [torch.ones(1, 1, 8, 8).double(), torch.ones(1, 1, 8, 8).long()])
def test_other_numbers_are_refused(images: Tensor) -> None:
    layers = row(1, 2, (3, 3))
    accelerate(layers)
    with pytest.raises(TypeError, match="float32 on the CPU, got torch"):
        layers(images)


@pytest.mark.parametrize("shape", [(1, 2, 8, 8), (1, 8, 8), (1, 1, 3, 8), (1, 1, 8, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    layers = row(1, 2, (3, 3))
    accelerate(layers)
    with pytest.raises(ValueError, match="Conv2d"):
        layers(torch.ones(shape))


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(2, 2, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 2, 3, dtype=torch.float64), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(3)],
        [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
        [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2)],
        [nn.Linear(1, 2)],
    ],
)
def test_a_model_without_such_a_row_is_refused(layers: list[nn.Module]) -> None:
    with pytest.raises(InvalidConfiguration, match="native finds nothing in Sequential"):
        accelerate(nn.Sequential(*layers))


def config(**changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "name": "native",
        "task": "tests.helpers.pictures:Pictures",
        "classes": Pictures.classes,
        "rounds": 2,
        "partition": "niid1:4:0.5",
        "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "weight_decay": 0.001},
    }
    return RunConfig.model_validate(fields | changes)


def final(given: RunConfig, folder: Path, kernels: KernelsName) -> tuple[dict[str, Tensor], list[float]]:
    """The final model, and the clients' losses of both rounds."""
    folder.mkdir()
    workbench = WorkbenchSpec.of(given, kernels=kernels).build()
    federation = Federation(given, workbench, folder)
    outcomes = federation.train_rounds(InProcess(workbench))
    losses = [result.loss or 0.0 for outcome in outcomes for result in outcome.results]
    names = [spec.name for spec in workbench.manifest]
    return wire.read_group(folder / federation.checkpoint.model, wire.MODEL, names), losses


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    plain = final(config(algorithm=algorithm), tmp_path / "plain", "torch")
    native = final(config(algorithm=algorithm), tmp_path / "native", "native")
    torch.testing.assert_close(native, plain, rtol=1e-3, atol=1e-4)
    start = WorkbenchSpec.of(config()).build().model.state_dict()
    assert any((native[0][name] - start[name]).abs().max() > 1e-3 for name in start), (
        "it has learnt something"
    )


def test_a_run_is_gone_on_with_by_its_own_kernels_alone(tmp_path: Path) -> None:
    out, said = tmp_path / "run.jsonl", list[str]()
    simulate(config(), source=None, out=out, kernels="native", until=1, say=said.append)
    with pytest.raises(InvalidConfiguration, match="begun with native kernels"):
        simulate(config(), source=None, out=out, say=said.append)
    whole = tmp_path / "whole.jsonl"
    digests = [
        simulate(config(), source=None, out=path, kernels="native", say=said.append) for path in (out, whole)
    ]
    assert digests[0] == digests[1] != ""


# ---------------------------------------------------------------- images


class Turned(CIFAR10):
    rotation = 10.0


class Shown(FashionMNIST):
    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images


@pytest.mark.parametrize("kind", [CIFAR10, FashionMNIST])
@pytest.mark.parametrize("number", [1, 16, 50, 64])
def test_images_are_prepared_bit_for_bit(kind: type[ImageTask], number: int) -> None:
    ours, plain = kind(NoOptions()), kind(NoOptions())
    assert accelerate_images(ours)
    images = torch.randint(0, 256, (number, *plain.input_shape), dtype=torch.uint8)
    draws = [torch.Generator().manual_seed(number) for _ in range(2)]
    for _ in range(2):
        prepared = [
            task.prepare(images, generator) for task, generator in zip((ours, plain), draws, strict=True)
        ]
        assert torch.equal(*prepared)
    assert torch.equal(ours.prepare(images, None), plain.prepare(images, None))
    assert torch.equal(ours.prepare(images.float(), None), plain.prepare(images, None))


@pytest.mark.parametrize("task", [Turned(NoOptions()), Shown(NoOptions()), Pictures(NoOptions())])
def test_images_prepared_in_another_way_are_left_to_their_task(task: Task) -> None:
    assert not accelerate_images(task)
    assert "prepare" not in vars(task)


# ---------------------------------------------------------------- the compiler


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing was compiled yet, and without a compiler until a test puts one there."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CXX", raising=False)
    library.load_library.cache_clear()
    yield tools
    library.load_library.cache_clear()


def test_without_a_compiler_it_says_what_to_install(bare: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"needs a C.. compiler.*apt install"):
        accelerate(row(1, 2, (3, 3)))


def test_a_compiler_that_refuses_is_quoted(bare: Path) -> None:
    compiler = bare / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such processor' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(InvalidConfiguration, match="no such processor"):
        accelerate(row(1, 2, (3, 3)))
    assert not list((bare.parent / "cache" / "feddisco").iterdir()), "nothing half made is left"
