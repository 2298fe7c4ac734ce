"""CCVR against independent computations: Gaussians of all examples at once, draws, training of the layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from shared import wire
from shared.aggregation import Aggregated, UpdateFile, aggregate
from shared.algorithms import available, load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.calibrated import Calibrated, check_calibration, find_algorithm, try_measuring
from shared.calibration import Calibration
from shared.config import AlgorithmChoice, RunConfig
from shared.features import check_counts, find_classifier
from shared.problems import InvalidConfiguration, ModelDiverged, OutOfBounds
from shared.schemas import TensorKind, TensorSpec
from shared.training import LocalResult
from shared.training.sgd import SGD
from shared.virtual_features import (
    LinearLayer,
    draw_features,
    factorise,
    fit_gaussians,
    retrain,
    share_out,
)
from shared.wire.tensors import manifest_of, state_of
from tests.helpers.awkward_model import LOCAL, SIZES, build, examples_of, local_round

MANIFEST = manifest_of(build())
NAMES = [spec.name for spec in MANIFEST if spec.kind is TensorKind.PARAMETER]
CLASSIFIER = {"head.weight", "head.bias"}
CONFIG = RunConfig(name="a", rounds=5, seed=3, calibration={"virtual_features": 50})


def calibrated(name: str = "fedavg", **options: Any) -> Calibrated:
    return Calibrated(load_algorithm(AlgorithmChoice(name=name)), Calibration(**options))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def combine(
    folder: Path, method: Any, results: dict[int, LocalResult], state: tuple[Any, Any] = (None, None)
) -> Aggregated:
    folder.mkdir()
    files = [
        UpdateFile(UpdateInfo(k, SIZES[k], 1.0, each.steps), wire.write(folder / f"{k}", each.tensors).path)
        for k, each in results.items()
    ]
    return aggregate(
        algorithm=method,
        manifest=MANIFEST,
        model=wire.write(folder / "start", {"model": state_of(build())}).path,
        broadcast=state[0],
        private=state[1],
        updates=files,
        weights={k: 1 / len(files) for k in results},
        clients=3,
        local=LOCAL,
        buffers="average",
        folder=folder,
        number=5,
        seed=3,
    )


# ---------------------------------------------------------------- the Gaussians


def sums_of(features: Tensor, labels: Tensor, classes: int) -> list[np.ndarray[Any, Any]]:
    own = [features[labels == c] for c in range(classes)]
    counts = torch.tensor([len(each) for each in own], dtype=torch.float64)
    made = (
        counts,
        torch.stack([each.sum(dim=0) for each in own]),
        torch.stack([each.T @ each for each in own]),
    )
    return [each.numpy() for each in made]


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_gaussians_are_those_of_all_examples_however_dealt(clients: int) -> None:
    features = torch.randn(400, 6, dtype=torch.float64, generator=generator()) + 3
    labels = torch.randint(0, 4, (400,), generator=generator(1))
    owners = torch.randint(0, clients, (400,), generator=generator(2))
    told = [sums_of(features[owners == k], labels[owners == k], 4) for k in range(clients)]
    pooled = fit_gaussians(*(np.sum(each, axis=0) for each in zip(*told, strict=True)))
    assert [each.label for each in pooled] == [0, 1, 2, 3]
    for each in pooled:
        own = features[labels == each.label]
        assert each.count == len(own)
        np.testing.assert_allclose(each.mean, own.mean(dim=0), rtol=0, atol=1e-10)
        np.testing.assert_allclose(each.covariance, torch.cov(own.T), rtol=0, atol=1e-10)


def test_equation_4_of_the_paper_gives_the_same() -> None:
    """Of local means and covariances, as the paper has clients send them, instead of sums."""
    parts = [torch.randn(n, 3, dtype=torch.float64, generator=generator(n)) + n for n in (2, 5, 9)]
    n = sum(map(len, parts))
    mean = sum(len(each) / n * each.mean(dim=0) for each in parts)
    covariance = -n / (n - 1) * torch.outer(mean, mean)  # type: ignore[arg-type]
    for each in parts:
        own = each.mean(dim=0)
        covariance += (len(each) - 1) / (n - 1) * torch.cov(each.T)
        covariance += len(each) / (n - 1) * torch.outer(own, own)
    zeros = torch.zeros(n, dtype=torch.int64)
    (found,) = fit_gaussians(*sums_of(torch.cat(parts), zeros, 1))
    np.testing.assert_allclose(found.covariance, covariance, rtol=0, atol=1e-10)


def test_classes_of_no_example_and_of_one() -> None:
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]).double(), torch.tensor([2, 0, 0])
    first, last = fit_gaussians(*sums_of(features, labels, 3))
    assert (first.label, last.label) == (0, 2)
    assert last.mean.tolist() == [1.0, 2.0]
    assert not last.covariance.any()
    drawn, classes = draw_features([first, last], 9, generator())
    assert classes.tolist() == [0] * 6 + [2] * 3
    assert drawn[6:].tolist() == [[1.0, 2.0]] * 3


# ---------------------------------------------------------------- draws


def test_draws_are_in_proportion_to_the_examples() -> None:
    assert share_out([500, 300, 200], 100) == [50, 30, 20]
    assert share_out([9990, 10], 100) == [100, 1], "a rare class has one at least"


def test_draws_have_the_means_and_covariances() -> None:
    root = torch.randn(3, 3, dtype=torch.float64, generator=generator())
    (gaussian,) = fit_gaussians(
        *sums_of(torch.randn(50, 3, generator=generator()).double() @ root, torch.zeros(50), 1)
    )
    drawn, _ = draw_features([gaussian], 200_000, generator(1))
    np.testing.assert_allclose(drawn.mean(axis=0), gaussian.mean, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), gaussian.covariance, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_singular_covariances_are_factorised(rank: int) -> None:
    root = torch.randn(8, rank, dtype=torch.float64, generator=generator()).numpy()
    lower = factorise(root @ root.T)
    np.testing.assert_allclose(lower @ lower.T, root @ root.T, atol=1e-9)
    assert np.array_equal(lower, np.tril(lower))


@pytest.mark.parametrize(
    "matrix",
    [
        [[1.0, 5.0, 0.0], [5.0, 1.0, -9.0], [0.0, -9.0, 2.0]],
        [[-1.0, 2.0, 0.0], [2.0, 1e-300, 1e12], [0.0, 1e12, 1e12]],
        [[1e12, -1e12, 1e12], [-1e12, 1.0, 1e12], [1e12, 1e12, 1e-12]],
    ],
)
def test_what_is_no_covariance_is_bounded_by_its_variances(matrix: list[list[float]]) -> None:
    lower = factorise(np.array(matrix))
    variances = (lower**2).sum(axis=1)
    assert (variances <= np.maximum(np.diag(matrix), 0) * (1 + 1e-9)).all()


# ---------------------------------------------------------------- the classifier


@pytest.mark.parametrize("has_bias", [True, False])
def test_it_is_trained_as_pytorch_trains_it(has_bias: bool) -> None:
    options = Calibration(epochs=3, batch_size=16, learning_rate=0.05, momentum=0.8, weight_decay=0.01)
    features = torch.randn(50, 4, dtype=torch.float64, generator=generator())
    labels = torch.randint(0, 3, (50,), generator=generator(1))
    layer = nn.Linear(4, 3, bias=has_bias, dtype=torch.float64)
    start = LinearLayer(
        *(None if p is None else p.detach().numpy().copy() for p in (layer.weight, layer.bias))
    )
    found = retrain(start, features.numpy(), labels.numpy(), options, generator(7))
    parameters, orders = list(layer.parameters()), generator(7)
    optimizer = SGD(parameters, 0.05, 0.8, 0.01)
    for _ in range(3):
        order = torch.randperm(50, generator=orders)
        for chosen in (order[first : first + 16] for first in range(0, 50, 16)):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(layer(features[chosen]), labels[chosen]))
            optimizer.step()
    np.testing.assert_allclose(found.weight, layer.weight.detach(), atol=1e-12)
    assert (found.bias is None) is not has_bias
    if found.bias is not None:
        np.testing.assert_allclose(found.bias, layer.bias.detach(), atol=1e-12)


def test_a_classifier_that_leans_to_one_class_is_put_right() -> None:
    """Features that separate three classes, and a classifier that calls everything the first."""
    centres = torch.tensor([[3.0, 0.0], [-3.0, 3.0], [-3.0, -3.0]]).double()
    labels = torch.arange(3).repeat_interleave(100)
    features = centres[labels] + torch.randn(300, 2, dtype=torch.float64, generator=generator())
    leaning = LinearLayer(np.zeros((3, 2)), np.array([8.0, 0.0, 0.0]))

    def accuracy(layer: LinearLayer) -> float:
        scores = features.numpy() @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        return float((scores.argmax(axis=1) == labels.numpy()).mean())

    drawn = draw_features(fit_gaussians(*sums_of(features, labels, 3)), 300, generator())
    assert accuracy(leaning) == pytest.approx(1 / 3)
    assert accuracy(retrain(leaning, *drawn, Calibration(), generator())) > 0.97


# ---------------------------------------------------------------- the round


def test_the_round_changes_the_classifier_and_nothing_else(tmp_path: Path) -> None:
    """And the classifier is what the features of all clients' examples, computed here, make of it."""
    method, start = calibrated(virtual_features=50), state_of(build())
    results = {k: local_round(method, k, start, number=5) for k in range(3)}
    assert [each.steps for each in results.values()] == [0, 0, 0]
    made = combine(tmp_path / "round", method, results)
    after = wire.read_group(made.model.path, "model", list(start))
    assert {name for name, value in start.items() if not torch.equal(after[name], value)} == CLASSIFIER
    model, everything = build().eval(), [examples_of(k) for k in range(3)]
    with torch.no_grad():
        inputs = torch.cat([each.inputs for each in everything])
        z = model.scale * (model.up(model.norm(model.down(inputs)).relu()) + model.frozen)
    gaussians = fit_gaussians(*sums_of(z.double(), torch.cat([each.targets for each in everything]), 3))
    stream = torch.Generator().manual_seed(_seed(5))
    drawn = draw_features(gaussians, 150, stream)
    before = LinearLayer(
        model.head.weight.detach().double().numpy(), model.head.bias.detach().double().numpy()
    )
    expected = retrain(before, *drawn, method.options, stream)
    np.testing.assert_allclose(after["head.weight"], expected.weight, atol=1e-4)
    np.testing.assert_allclose(after["head.bias"], expected.bias, atol=1e-4)  # type: ignore[arg-type]


def _seed(number: int) -> int:
    from shared.seeds import derive

    return derive(3, "calibration", number)


@pytest.mark.parametrize("name", available())
def test_with_every_algorithm(name: str, tmp_path: Path) -> None:
    """Files are as declared, and what the algorithm keeps is handed on, bit for bit."""
    method, start = calibrated(name, virtual_features=5, epochs=1), state_of(build())
    own = method.own_specs(MANIFEST)
    groups = {group: _fill(method, group) for group in (*method.downloads, *method.private, *method.keeps)}
    stored = tuple(
        wire.write(tmp_path / f"{place}", {group: groups[group] for group in declared}).path
        if declared
        else None
        for place, declared in enumerate((method.downloads, method.private))
    )
    results = {}
    for k in range(3):
        kept = {group: groups[group] for group in method.keeps}
        results[k] = local_round(method, k, start, {g: groups[g] for g in method.downloads}, kept, number=5)
        assert {group: set(tensors) for group, tensors in results[k].kept.items()} == {
            group: set(tensors) for group, tensors in kept.items()
        }
        path = wire.write(tmp_path / f"update-{k}", results[k].tensors).path
        wire.validate(path, wire.update_layout(MANIFEST, method.uploads, "average", own))
    made = combine(tmp_path / "round", method, results, stored)  # type: ignore[arg-type]
    for written, declared in ((made.broadcast, method.downloads), (made.private, method.private)):
        for group in declared:
            assert written is not None
            after = wire.read_group(written.path, group, list(groups[group]))
            assert all(torch.equal(after[name], value) for name, value in groups[group].items())


def _fill(method: Calibrated, group: str) -> dict[str, Tensor]:
    return {
        spec.name: torch.randn(spec.shape, generator=generator(1))
        for spec in method.specs_of(group, MANIFEST)
    }


def test_threads_change_no_bit(tmp_path: Path) -> None:
    """With 64 features, of which a library's product would be split."""
    features = torch.randn(300, 64, dtype=torch.float64, generator=generator())
    gaussians = fit_gaussians(*sums_of(features, torch.arange(300) % 3, 3))
    start, made = LinearLayer(np.zeros((3, 64)), np.zeros(3)), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            made.append(
                retrain(start, *draw_features(gaussians, 900, generator()), Calibration(), generator())
            )
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(made[0].weight, made[1].weight)


def test_a_round_in_which_nobody_counts_leaves_the_model(tmp_path: Path) -> None:
    method, start = calibrated(), state_of(build())
    result = local_round(method, 0, start, number=5)
    for tensor in result.tensors["class_sums"].values():
        tensor.zero_()
    made = combine(tmp_path / "round", method, {0: result})
    after = wire.read_group(made.model.path, "model", list(start))
    assert all(torch.equal(after[name], value) for name, value in start.items())


def test_lies_within_the_bounds_of_a_run_make_a_model_that_is_finite(tmp_path: Path) -> None:
    method, start = calibrated(virtual_features=20), state_of(build())
    results = {k: local_round(method, k, start, number=5) for k in range(3)}
    told = results[1].tensors["class_sums"]
    told["products"].copy_(1e12 * torch.randn(told["products"].shape, generator=generator()).sign())
    told["sums"].fill_(-1e12)
    made = combine(tmp_path / "round", method, results)
    after = wire.read_group(made.model.path, "model", NAMES)
    assert all(bool(torch.isfinite(value).all()) for value in after.values())


def test_a_calibration_that_diverges_says_whose_fault_it_is(tmp_path: Path) -> None:
    method = calibrated(virtual_features=20, epochs=40, learning_rate=1000, weight_decay=0.9)
    results = {k: local_round(method, k, state_of(build()), number=5) for k in range(3)}
    with (
        pytest.raises(ModelDiverged, match=r"calibration\.learning_rate") as found,
        np.errstate(all="ignore"),
    ):
        combine(tmp_path / "round", method, results)
    assert "after its calibration" in found.value.detail


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ([3.0, 4.0, 5.0], True),
        ([4.0, 4.0, 5.0], False),
        ([-1.0, 8.0, 5.0], False),
        ([3.5, 4.0, 4.5], False),
        ([6.0] * 3, False),
    ],
)
def test_counts_are_of_the_clients_own_examples(counts: list[float], fits: bool, tmp_path: Path) -> None:
    path = wire.write(tmp_path / "update", {"class_sums": {"counts": torch.tensor(counts).double()}}).path
    if fits:
        check_counts(path, ["class_sums/counts"], 12)
    else:
        with pytest.raises(OutOfBounds, match=r"'class_sums/counts' counts .* where the client has 12"):
            check_counts(path, ["class_sums/counts"], 12)


# ---------------------------------------------------------------- what a run may ask for


def test_only_the_last_round_calibrates() -> None:
    kinds = [type(find_algorithm(CONFIG, number)).__name__ for number in range(1, 6)]
    assert kinds == ["FedAvg"] * 4 + ["Calibrated"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 1}, "take 2 rounds or more"),
        ({"secure": {}, "min_clients": 3, "weighting": {"kind": "sizes"}}, "leave out `secure`"),
        ({"dp": {"epsilon": 1}}, "to which no noise is added"),
        ({"aggregation": {"kind": "median"}}, "which a robust rule does not make"),
        ({"stop_when": {"patience": 2}}, "leave out `stop_when`"),
        ({"average_every": 3}, "calibration measures one model at all clients"),
    ],
)
def test_what_a_calibration_cannot_go_with(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"name": "a", "calibration": "ccvr", "rounds": 5, **changes})


@pytest.mark.parametrize(
    ("shape", "classes", "options", "said"),
    [
        ((1, 8), 3, {}, "has 1 outputs for 3 classes"),
        ((3, 8), 3, {"classifier": "tail"}, "no trainable linear layer 'tail'"),
        ((100, 4096), 100, {}, "the covariances of 100 classes with 4096 features are 12.5 GiB"),
        ((100, 1000), 100, {"virtual_features": 100_000}, "Lower calibration.virtual_features"),
        ((10, 1), 10, {}, None),
    ],
)
def test_models_that_cannot_be_calibrated(
    shape: tuple[int, int], classes: int, options: dict[str, Any], said: str | None
) -> None:
    config = CONFIG.change({"calibration": options})
    manifest = [TensorSpec(name="head.weight", shape=shape, dtype="F32")]
    names = [str(number) for number in range(classes)]
    if said is None:
        check_calibration(config, manifest, names)
        return
    with pytest.raises(InvalidConfiguration) as refused:
        check_calibration(config, manifest, names)
    assert said in f"{refused.value.detail} {refused.value.hint}"


class EachStep(nn.Module):
    """Its classifier sees each of three steps of an example."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(inputs)
        return scores.mean(dim=1)


@pytest.mark.parametrize(
    ("inputs", "targets", "said"),
    [
        (torch.ones(1, 3, 4), torch.tensor([1]), r"given \[1, 12\] numbers for 1 examples, not 4 for each"),
        (torch.ones(1, 1, 4), torch.tensor([0.5]), "targets are no classes"),
        (torch.ones(1, 1, 4), torch.tensor([3]), "targets are no classes"),
        (torch.ones(1, 1, 4), torch.tensor([2]), None),
    ],
)
def test_what_cannot_be_measured_is_found_before_the_last_round(
    inputs: Tensor, targets: Tensor, said: str | None
) -> None:
    model = EachStep()
    if said is None:
        try_measuring(Calibration(), model, inputs, targets)
    else:
        with pytest.raises(InvalidConfiguration, match=said):
            try_measuring(Calibration(), model, inputs, targets)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    manifest = manifest_of(nn.Conv2d(1, 3, 3))
    with pytest.raises(InvalidConfiguration, match="no trainable linear layer"):
        check_calibration(CONFIG, manifest, ["a", "b", "c"])
    assert find_classifier(MANIFEST, None).name == "head"
