"""FedFM against its formulas: anchors from all features at once, the term by hand, measuring rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shared import wire
from shared.aggregation import UpdateFile, aggregate
from shared.algorithms import load_algorithm
from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalFinish, LocalRound, Told, UpdateInfo
from shared.algorithms.fedfm import matching_loss
from shared.config import AlgorithmChoice, RunConfig
from shared.features import check_features, find_classifier, measure, sum_specs
from shared.problems import InvalidConfiguration
from shared.schemas import TensorSpec
from shared.training import LocalResult, Stopped
from shared.wire.tensors import manifest_of, state_of, trainable
from tests.helpers.awkward_model import LOCAL, SIZES, Awkward, build, examples_of, groups_in, local_round

MANIFEST = manifest_of(build())
TRAINS, MEASURES, MATCHES = 1, 2, 3  # rounds, where start is 1


def fedfm(**parameters: object) -> Any:
    return load_algorithm(AlgorithmChoice(name="fedfm", parameters={"start": 1, **parameters}))


def features(model: Awkward, inputs: Tensor) -> Tensor:  # (B, 4) -> (B, 4), what the head is given
    hidden = model.norm(model.down(inputs)).relu()
    found: Tensor = model.scale * (model.up(hidden) + model.frozen)
    return found


def combine(folder: Path, results: dict[int, LocalResult], number: int, broadcast: Path | None = None) -> Any:
    folder.mkdir()
    model = wire.write(folder / "start", {"model": state_of(build())}).path
    files = [
        UpdateFile(
            UpdateInfo(k, SIZES[k], 1.0, result.steps), wire.write(folder / f"{k}", result.tensors).path
        )
        for k, result in results.items()
    ]
    return aggregate(
        algorithm=fedfm(),
        manifest=MANIFEST,
        model=model,
        broadcast=broadcast,
        private=None,
        updates=files,
        weights={k: 1 / len(files) for k in results},
        clients=3,
        local=LOCAL,
        buffers="average",
        folder=folder,
        number=number,
    )


# ---------------------------------------------------------------- the term


def test_the_term_by_hand() -> None:
    """Cosines 1 and 0, then 0.6 and 0.8, over T = 0.5: ln(1 + e^-2), ln(1 + e^0.4), whatever the lengths."""
    found = torch.tensor([[3.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    anchors, labels = torch.tensor([[2.0, 0.0], [0.0, 0.5]]), torch.tensor([0, 0])
    loss = matching_loss(found, labels, anchors, torch.tensor([True, True]), 0.5)
    assert loss.item() == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(0.4))) / 2)


def test_classes_without_an_anchor_take_no_part() -> None:
    found, anchors = torch.eye(3), torch.eye(3)
    seen = torch.tensor([True, True, False])
    loss = matching_loss(found, torch.tensor([0, 1, 2]), anchors, seen, 0.5)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-2)))
    alone = matching_loss(found.requires_grad_(), torch.tensor([2, 2, 2]), anchors, seen, 0.5)
    torch.autograd.backward(alone)
    assert alone.item() == 0
    assert found.grad is not None
    assert torch.equal(found.grad, torch.zeros(3, 3))


def test_a_step_follows_the_loss() -> None:
    """One batch of all examples: cross-entropy and mu times the term, by autograd on the model itself."""
    start, local = state_of(build()), LOCAL.model_copy(update={"steps": 1, "batch_size": SIZES[0]})
    anchors = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    received = {"anchors": {"anchors": anchors, "seen": torch.ones(3)}}
    result = local_round(fedfm(mu=3, temperature=0.5), 0, start, received, local=local, number=MATCHES)
    model, examples = build(), examples_of(0)
    z = features(model, examples.inputs)
    similar = torch.stack([torch.cosine_similarity(z, anchor[None]) for anchor in anchors], dim=1) / 0.5
    loss = functional.cross_entropy(model.head(z), examples.targets)
    loss = loss + 3 * functional.cross_entropy(similar, examples.targets)
    weights = trainable(model)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        step = gradient + local.weight_decay * weight.detach()
        expected = weight.detach() - local.learning_rate * step
        torch.testing.assert_close(result.tensors["model"][name], expected)
    assert not any(tensor.any() for tensor in result.tensors["features"].values())


# ---------------------------------------------------------------- rounds


def test_before_the_first_anchors_it_is_fedavg() -> None:
    start = state_of(build())
    plain = local_round(load_algorithm(AlgorithmChoice(name="fedavg")), 0, start).tensors["model"]
    found = local_round(fedfm(), 0, start, number=TRAINS).tensors["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())
    assert [fedfm(start=2).trains(number) for number in range(1, 7)] == [True, True, False, True, False, True]


def test_anchors_are_means_over_all_examples_of_all_clients(tmp_path: Path) -> None:
    start = state_of(build())
    results = {k: local_round(fedfm(), k, start, number=MEASURES) for k in range(3)}
    assert [result.steps for result in results.values()] == [0, 0, 0]
    made = combine(tmp_path / "all", results, MEASURES)
    with torch.no_grad():
        everything = [examples_of(k) for k in range(3)]
        z = features(build().eval(), torch.cat([each.inputs for each in everything])).double()
    labels = torch.cat([each.targets for each in everything])
    expected = torch.stack([z[labels == c].mean(dim=0) for c in range(3)])
    found = groups_in(made.broadcast.path, fedfm(), MANIFEST)["anchors"]
    torch.testing.assert_close(found["anchors"], expected.float())
    assert found["seen"].tolist() == [1, 1, 1]
    after = wire.read_group(made.model.path, "model", start)
    assert all(torch.equal(after[name], tensor) for name, tensor in start.items()), "the model stays"


def test_a_class_that_nobody_has_keeps_its_anchor(tmp_path: Path) -> None:
    start = state_of(build())
    only = local_round(fedfm(), 0, start, number=MEASURES)
    only.tensors["features"]["counts"][2] = 0
    only.tensors["features"]["sums"][2] = 0
    first = combine(tmp_path / "first", {0: only}, MEASURES)
    assert groups_in(first.broadcast.path, fedfm(), MANIFEST)["anchors"]["seen"].tolist() == [1, 1, 0]
    before = {"anchors": {"anchors": torch.full((3, 4), 7.0), "seen": torch.ones(3)}}
    second = combine(tmp_path / "second", {0: only}, MEASURES, wire.write(tmp_path / "b", before).path)
    found = groups_in(second.broadcast.path, fedfm(), MANIFEST)["anchors"]
    assert found["anchors"][2].tolist() == [7.0] * 4
    assert not (found["anchors"][:2] == 7.0).any()
    trained = local_round(fedfm(), 0, start, number=TRAINS)
    third = combine(tmp_path / "third", {0: trained}, TRAINS, second.broadcast.path)
    assert third.broadcast.digest == second.broadcast.digest, "training rounds hand the anchors on"


class Measured(Algorithm[AlgorithmParameters]):
    """One's own, that nobody trains: what CCVR would ask of clients."""

    uploads = ("features",)
    tells: Told = "covariances"

    def trains(self, round: int) -> bool:
        return False

    def own_specs(self, manifest: Sequence[TensorSpec]) -> Mapping[str, Sequence[TensorSpec]]:
        return {"features": sum_specs(find_classifier(manifest, None), self.tells)}

    def finish(self, local: LocalRound) -> LocalFinish:
        return LocalFinish(
            uploads={"features": measure(local, find_classifier(local.manifest, None), self.tells)}
        )


def test_sums_give_the_covariances_of_all_examples_together() -> None:
    method, start = Measured(AlgorithmParameters()), state_of(build())
    told = [local_round(method, k, start).tensors["features"] for k in range(3)]
    total = {name: torch.stack([sums[name] for sums in told]).sum(dim=0) for name in told[0]}
    everything = [examples_of(k) for k in range(3)]
    with torch.no_grad():
        z = features(build().eval(), torch.cat([each.inputs for each in everything])).double()
    labels = torch.cat([each.targets for each in everything])
    for c in range(3):
        n = float(total["counts"][c])
        assert n == (labels == c).sum()
        mean = total["sums"][c] / n
        covariance = (total["products"][c] - n * torch.outer(mean, mean)) / (n - 1)
        torch.testing.assert_close(covariance, torch.cov(z[labels == c].T), rtol=1e-5, atol=1e-7)


def test_a_stopped_round_leaves_nothing_behind_on_the_model() -> None:
    model, start = build(), state_of(build())
    received = {"anchors": {"anchors": torch.ones(3, 4), "seen": torch.ones(3)}}
    with pytest.raises(Stopped):
        local_round(fedfm(), 0, start, received, model=model, number=MATCHES, should_stop=lambda: True)
    model(torch.zeros(2, 4))
    local_round(fedfm(), 0, start, model=model, number=MEASURES)
    assert not model.head._forward_pre_hooks


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"secure": {}, "min_clients": 3}, "secure: fedfm sums features by class"),
        ({"aggregation": {"kind": "median"}}, "aggregation: fedfm needs sums of features over all clients"),
    ],
)
def test_what_cannot_add_up_is_refused(changes: dict[str, Any], said: str) -> None:
    config = RunConfig.model_validate({"name": "a", "algorithm": "fedfm", **changes})
    with pytest.raises(InvalidConfiguration, match=said):
        check_features(config, fedfm())


def test_the_classifier_is_named_or_the_last_matrix() -> None:
    assert find_classifier(MANIFEST, None).name == "head"
    named = find_classifier(MANIFEST, "down")
    assert (named.classes, named.features, named.has_bias) == (4, 4, True)
    with pytest.raises(InvalidConfiguration, match=r"layer 'tail' .*down, head"):
        find_classifier(MANIFEST, "tail")
    with pytest.raises(InvalidConfiguration, match="no trainable linear layer"):
        find_classifier([spec for spec in MANIFEST if "weight" not in spec.name], None)
