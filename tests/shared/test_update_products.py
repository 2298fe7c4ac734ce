"""Inner products of real files, what weightings do to a model, and the slopes on examples of no client."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared import wire
from shared.aggregation import Stream, UpdateFile, aggregate, products
from shared.aggregation.products import inner_products
from shared.aggregation.proxy import Mixture
from shared.algorithms import load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.config import AlgorithmChoice, LocalTraining
from shared.data import Examples
from shared.tasks import load_task
from shared.training.proxy import ProxySet
from shared.weightings.base import Adjustment
from shared.wire.tensors import load_into, manifest_of, state_of, trainable

CLIENTS = 3


class Net(nn.Module):
    """Two layers, a parameter of its own, a buffer; one parameter is of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 5)
        self.last = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.first(inputs))) * self.scale.float()
        return outputs


class Files:
    """A model and the updates of three clients, as files."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.manifest = manifest_of(self.net)
        self.parameters = [spec for spec in self.manifest if spec.name in trainable(self.net)]
        self.x = state_of(self.net)
        self.model = wire.write(folder / "model", {wire.MODEL: self.x}).path
        self.y = [{n: t + torch.randn_like(t) for n, t in self.x.items()} for _ in range(CLIENTS)]
        self.updates = [
            UpdateFile(
                UpdateInfo(index, 10, 1.0, 1), wire.write(folder / f"{index}", {wire.MODEL: tensors}).path
            )
            for index, tensors in enumerate(self.y)
        ]
        self.folder = folder

    def aggregate(self, into: str, algorithm: str = "fedavg", **changes: Any) -> dict[str, dict[str, Tensor]]:
        folder = self.folder / into
        folder.mkdir()
        made = aggregate(
            algorithm=load_algorithm(AlgorithmChoice(name=algorithm)),
            manifest=self.manifest,
            model=self.model,
            broadcast=None,
            private=None,
            updates=self.updates,
            weights={0: 0.5, 1: 0.3, 2: 0.2},
            clients=CLIENTS,
            local=LocalTraining(),
            buffers="average",
            folder=folder,
            **changes,
        )
        names = [spec.name for spec in self.manifest]
        files = {"model": made.model.path, "scored": made.scored.path}
        return {which: wire.read_group(path, wire.MODEL, names) for which, path in files.items()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("chunk", [1, 9, 1 << 21])
def test_inner_products_are_those_of_the_flat_vectors(
    files: Files, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "CHUNK_NUMBERS", chunk)
    found = inner_products(files.model, [update.path for update in files.updates], files.parameters)
    layers = {
        "first": ["first.weight", "first.bias"],
        "last": ["last.weight", "last.bias"],
        "scale": ["scale"],
    }
    assert set(found) == set(layers)
    for layer, names in layers.items():
        rows = [[y[name].double() - files.x[name].double() for name in names] for y in files.y]
        rows.append([files.x[name].double() for name in names])
        matrix = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).numpy()
        assert found[layer] == pytest.approx(matrix @ matrix.T, abs=1e-10)
        assert (found[layer] == found[layer].T).all()


def test_inner_products_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    files, before = Files(tmp_path, seed=4), torch.get_num_threads()
    paths = [update.path for update in files.updates]
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(inner_products(files.model, paths, files.parameters))
    finally:
        torch.set_num_threads(before)
    for one, other in itertools.pairwise(found):
        assert all((one[layer] == other[layer]).all() for layer in one)


def test_an_adjustment_steps_then_shrinks(files: Files) -> None:
    plain = files.aggregate("plain")["model"]
    made = files.aggregate("other", adjustment=Adjustment(0.25, 0.9, {"last": 0.5}))["model"]
    for name, value in plain.items():
        if name == "seen":
            expected = value  # a buffer is the mean, whatever becomes of the parameters
        else:
            stepped = files.x[name] + 0.25 * (value - files.x[name])
            expected = stepped * 0.9 * (0.5 if name.startswith("last") else 1.0)
        assert made[name].numpy() == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-7)


def test_an_adjustment_of_nothing_changes_no_bit(files: Files) -> None:
    plain = files.aggregate("plain")["model"]
    same = files.aggregate("same", adjustment=Adjustment(layers={"first": 1.0, "last": 1.0}))["model"]
    assert all(torch.equal(plain[name], same[name]) for name in plain)


def test_the_model_that_is_scored_is_adjusted_like_the_one_that_is_sent(files: Files) -> None:
    plain = files.aggregate("plain", "feddyn")
    made = files.aggregate("half", "feddyn", adjustment=Adjustment(shrink=0.5))
    for which in ("model", "scored"):
        found, expected = made[which]["first.weight"], plain[which]["first.weight"] * 0.5
        assert torch.allclose(found, expected)
    assert not torch.equal(made["model"]["first.weight"], made["scored"]["first.weight"])


def test_slopes_on_examples_are_the_derivatives_by_the_clients_weights(files: Files) -> None:
    """Against central differences of the loss, computed by the model itself."""
    task = load_task("digits", {})
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn(11, 8, generator=generator), torch.randint(3, (11,), generator=generator)
    examples = ProxySet(task, Net(), Examples(inputs, targets), 8)
    mixture = Mixture(examples, files.updates, Stream(files.updates, files.parameters))
    assert mixture.batches == 2

    def loss(coefficients: dict[int, float], batch: int) -> float:
        net = Net()
        mixed = {n: sum(c * files.y[k][n] for k, c in coefficients.items()) for n in files.x}
        load_into(net, {n: t.to(files.x[n].dtype) for n, t in mixed.items()})  # type: ignore[union-attr]
        chosen = slice(8 * batch, 8 * batch + 8)
        prepared = task.prepare(inputs[chosen], None)
        return nn.functional.cross_entropy(net(prepared), targets[chosen]).item()

    at, width = {0: 0.5, 1: 0.1, 2: 0.3}, 0.01
    for batch in (0, 1):
        found = mixture.slopes(at, batch)
        for k in at:
            up, down = (loss({**at, k: at[k] + way * width}, batch) for way in (1, -1))
            assert found[k] == pytest.approx((up - down) / (2 * width), rel=0.02, abs=2e-3)


def test_slopes_are_of_the_clients_asked_for(files: Files) -> None:
    task = load_task("digits", {})
    examples = ProxySet(task, Net(), Examples(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])), 4)
    mixture = Mixture(examples, files.updates, Stream(files.updates, files.parameters))
    some = mixture.slopes({0: 0.4, 2: 0.6}, 0)
    everybody = mixture.slopes({0: 0.4, 1: 0.0, 2: 0.6}, 0)
    assert set(some) == {0, 2}
    assert np.isfinite(list(everybody.values())).all()
    assert some == {0: everybody[0], 2: everybody[2]}
