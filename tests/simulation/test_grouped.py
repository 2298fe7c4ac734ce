"""The engine grouped: the same training as the other engines, but for rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared import wire
from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalRound
from shared.config import RunConfig
from shared.data import Examples
from shared.problems import InvalidConfiguration
from shared.tasks.base import NoOptions, Split, Task
from shared.training import Diverged
from simulation.engines import Engine, InProcess
from simulation.federation import Federation
from simulation.grouped import LARGEST, Grouped
from simulation.jobs import Done, Workshop
from simulation.run import Results, simulate
from simulation.stacked import Rows, StackedModel

Tensors = dict[str, Tensor]

MODELS: dict[str, nn.Module] = {}
"""What ``Pictures`` builds, by name."""


class Pictures(Task):
    """120 random images 3 x 16 x 16 of four classes; preparing them draws noise."""

    name = "pictures"
    default_model = "simple-cnn"
    classes = ("a", "b", "c", "d")
    input_shape = (3, 16, 16)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (120, *self.input_shape), generator=generator, dtype=torch.uint8)
        return Examples(images, torch.arange(120) % 4)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        images = inputs.float().sub_(127).div_(64)
        return images if generator is None else images + torch.randn(images.shape, generator=generator)

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        return MODELS[model] if model in MODELS else super().build_model(model, seed)


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "grouped",
        "task": f"{__name__}:Pictures",
        "classes": Pictures.classes,
        "rounds": 2,
        "partition": "niid1:4:0.5",
        "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "weight_decay": 0.001},
    }
    return RunConfig.model_validate(given | changes)


def trained(
    given: RunConfig, folder: Path, grouped: bool
) -> tuple[Tensors, list[tuple[Done, ...]], dict[str, dict[str, Tensors]]]:
    """The final model, what was done in each round, and what the clients keep."""
    folder.mkdir()
    workshop = Workshop(given, None)
    engine: Engine = Grouped(workshop) if grouped else InProcess(workshop)
    federation = Federation(given, workshop, folder)
    done = [outcome.done for outcome in federation.rounds(engine)]
    names = [spec.name for spec in workshop.manifest]
    kept = {
        str(index): {
            group: wire.read_group(folder / name, group, names) for group in workshop.algorithm.keeps
        }
        for index, name in federation.files.kept.items()
    }
    return wire.read_group(folder / federation.files.model, wire.MODEL, names), done, kept


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def same_training(given: RunConfig, folder: Path) -> list[tuple[Done, ...]]:
    model, done, kept = trained(given, folder / "one", grouped=False)
    grouped_model, grouped_done, grouped_kept = trained(given, folder / "grouped", grouped=True)
    close(grouped_model, model)
    close(grouped_kept, kept)
    numbers = [[(d.index, d.steps, d.examples) for d in round] for round in done]
    assert [[(d.index, d.steps, d.examples) for d in round] for round in grouped_done] == numbers
    close([[d.loss for d in round] for round in grouped_done], [[d.loss for d in round] for round in done])
    start = Workshop(given, None).model.state_dict()
    assert any((model[name] - start[name]).abs().max() > 1e-3 for name in model), "it has learnt something"
    return done


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedavgm", "fedopt", "fednova", "fedprox", "scaffold", "feddyn", "feddc"]
)
def test_every_algorithm_without_a_loss_of_its_own(algorithm: str, tmp_path: Path) -> None:
    same_training(config(algorithm=algorithm), tmp_path)


@pytest.mark.parametrize(
    "local",
    [
        {"steps_range": (0, 6), "batch_size": 8},
        {"epochs": 2, "batch_size": 16, "drop_last": False},
        {"steps": 3, "batch_size": 64},  # more than anybody has: batches of unequal length
        {"steps": 4, "batch_size": 8, "clip_norm": 0.1, "momentum": 0.0, "learning_rate": 0.3},
    ],
)
def test_unequal_clients(local: dict[str, Any], tmp_path: Path) -> None:
    done = same_training(config(local=local, algorithm="fedprox"), tmp_path)
    if "steps_range" in local:
        assert len({d.steps for d in done[0]}) > 1


def test_more_clients_than_a_group_takes(tmp_path: Path) -> None:
    done = same_training(config(partition=f"iid:{LARGEST + 2}", rounds=1), tmp_path)
    assert len(done[0]) == LARGEST + 2


def test_digits_with_the_mlp(tmp_path: Path) -> None:
    given = config(task="digits", classes=None, model="mlp", local={"steps": 5, "learning_rate": 0.05})
    same_training(given, tmp_path)


class Odd(nn.Module):
    """What the models of ours have not: strides, groups, dilation, no biases, tied and frozen layers."""

    def __init__(self) -> None:
        super().__init__()
        tied = nn.Linear(12, 12)
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3, bias=False),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=1, padding=1),
            nn.Conv2d(6, 4, 2, dilation=2, padding="same"),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d((1, 3)),
            nn.Flatten(),
            tied,
            nn.GELU(),
            tied,
        )
        self.classifier = nn.Linear(12, 4, bias=False)
        self.features[3].bias.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.classifier(self.features(images))
        return outputs


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor | None]:
    for parameter in model.parameters():
        parameter.grad = None
    functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["simple-cnn", "mlp", "odd"])
def test_gradients_of_one_step(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    template = Odd() if name == "odd" else Pictures(NoOptions()).build_model(name, 0)
    rows = Rows(template, 3)
    with torch.no_grad():
        for model in rows.models:
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    images = torch.randn((3, 5, 3, 16, 16), generator=generator)
    labels = torch.randint(0, 4, (3, 5), generator=generator)
    leaves = rows.first(3)
    outputs = StackedModel(template)(list(images), leaves)
    torch.stack(
        [functional.cross_entropy(*pair) for pair in zip(outputs, labels, strict=True)]
    ).sum().backward()  # type: ignore[no-untyped-call]
    for row, model in enumerate(rows.models):
        torch.testing.assert_close(outputs[row], model(images[row]), rtol=0, atol=1e-6)
        expected = gradients(model, images[row], labels[row])
        found = [None if leaf.grad is None else leaf.grad[row] for leaf in leaves.values()]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


class Halved(Algorithm[AlgorithmParameters]):
    """Puts another tensor in the gradient's place, and moves the start."""

    citation = "none"

    def begin(self, local: LocalRound) -> None:
        for parameter in local.parameters.values():
            parameter.detach().add_(0.01 * (1 + local.relative_size))

    def on_gradient(self, local: LocalRound) -> None:
        for parameter in local.parameters.values():
            parameter.grad = None if parameter.grad is None else parameter.grad / 2


def test_hooks_of_somebodys_own(tmp_path: Path) -> None:
    same_training(config(algorithm=f"{__name__}:Halved"), tmp_path)


def test_a_model_of_somebodys_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Odd()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    monkeypatch.setitem(MODELS, "odd", model)
    given = config(model="odd")
    one, _, _ = trained(given, tmp_path / "one", grouped=False)
    model.load_state_dict(start)
    grouped, _, _ = trained(given, tmp_path / "grouped", grouped=True)
    close(grouped, one)
    assert torch.equal(grouped["features.3.bias"], start["features.3.bias"]), "frozen"
    assert not torch.equal(grouped["features.8.weight"], start["features.8.weight"])


def test_diverged_names_the_client(tmp_path: Path) -> None:
    given = config(local={"steps": 60, "learning_rate": 1e6})
    with pytest.raises(Diverged, match=r"The loss is (nan|inf) at step \d+ of 60 of client \d in round 1"):
        trained(given, tmp_path / "diverged", grouped=True)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, values: Tensor) -> Tensor:
        return functional.relu(self.layer(values))


class Branching(Functional):
    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.layer(values) if values.sum() > 0 else -self.layer(values)
        return outputs


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Functional(), r"cannot follow Functional\.forward at relu"),
        (Branching(), r"cannot follow Branching\.forward: symbolically traced variables"),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), r"does not know the layer 1: Dropout\(p=0\.1"),
        (nn.Sequential(nn.BatchNorm2d(3)), "does not know the layer 0: BatchNorm2d"),
        (nn.Sequential(nn.Flatten(0)), "does not know the layer 0: Flatten"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")), "padding_mode=circular"),
        (Pictures(NoOptions()).build_model("resnet18-gn", 0), r"cannot follow ResNet18GN\.forward at"),
    ],
)
def test_models_that_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"engine: grouped .*{message}") as refusal:
        StackedModel(model)
    assert "in-process" in str(refusal.value.hint)


def test_a_linear_layer_over_images_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(14, 2))
    rows = Rows(model, 2)
    with pytest.raises(InvalidConfiguration, match=r"Linear\(in_features=14.* only after nn\.Flatten"):
        StackedModel(model)([torch.zeros(5, 3, 16, 16)] * 2, rows.first(2))


def test_a_loss_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"engine: grouped cannot train moon, .*extra_loss"):
        Grouped(Workshop(config(algorithm="moon"), None))


def quiet(line: str) -> None:
    pass


def test_simulate_says_which_engine_and_goes_on_with_it_only(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    simulate(config(), source=None, out=out, engine="grouped", until=1, say=quiet)
    assert Results(out).lines()[0]["machine"]["engine"] == "grouped"
    with pytest.raises(InvalidConfiguration, match=r"r\.jsonl was begun with the engine grouped"):
        simulate(config(), source=None, out=out, say=quiet)
    simulate(config(), source=None, out=out, engine="grouped", say=quiet)
    assert Results(out).lines()[-1]["kind"] == "end"


def test_one_process_engines_take_no_more(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="grouped does not take a number of processes, received 2"):
        simulate(config(), source=None, out=tmp_path / "r", engine="grouped", processes=2, say=quiet)
