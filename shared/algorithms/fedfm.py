"""FedFM: features of a class are drawn to its anchor, the mean of what all clients' examples look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from shared.algorithms.base import (
    Algorithm,
    AlgorithmParameters,
    Batch,
    Combined,
    LocalFinish,
    LocalRound,
    ServerRound,
    Told,
)
from shared.features import (
    COUNTS,
    FEATURES,
    SUMS,
    check_labels,
    find_classifier,
    find_module,
    listen,
    measure,
    stop_listening,
    sum_specs,
)
from shared.schemas import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FedFm", "FedFmParameters", "matching_loss"]

ANCHORS, SEEN = "anchors", "seen"


class FedFmParameters(AlgorithmParameters):
    mu: float = Field(50.0, ge=0, description="weight of the matching term")
    temperature: float = Field(0.1, gt=0)
    start: int = Field(20, ge=0, description="rounds of training before the first anchors")
    classifier: str | None = Field(
        None, description="module whose input are the features; None: the model's last linear layer"
    )


class FedFm(Algorithm[FedFmParameters]):
    """The client adds ``mu l_cg`` to its loss; anchors are class means over all clients' examples.

    Anchors are those of the model that clients train from, so they take an exchange of their own: after
    ``start`` rounds, clients only measure the model in every other round, and train in the next one. 100
    rounds of training with ``start`` 20 are 180 rounds. A class of which no client of a measuring round has
    an example keeps its last anchor; one that never had an anchor takes no part in the term.
    """

    citation: ClassVar[str] = (
        "Ye, Ni, Xu, Wang, Chen, Eldar: FedFM: Anchor-Based Feature Matching for Data Heterogeneity in "
        "Federated Learning. IEEE Transactions on Signal Processing 71, 2023."
    )
    Parameters = FedFmParameters
    downloads = ("anchors",)
    uploads = ("features",)
    tells: Told = "means"

    def trains(self, round: int) -> bool:
        return round <= self.parameters.start or (round - self.parameters.start) % 2 == 0

    def own_specs(self, manifest: Sequence[TensorSpec]) -> Mapping[str, Sequence[TensorSpec]]:
        layer = find_classifier(manifest, self.parameters.classifier)
        anchors = (
            TensorSpec(name=ANCHORS, shape=(layer.classes, layer.features), dtype="F32"),
            TensorSpec(name=SEEN, shape=(layer.classes,), dtype="F32"),
        )
        return {"anchors": anchors, "features": sum_specs(layer, self.tells)}

    def begin(self, local: LocalRound) -> None:
        """Listens at the classifier, so that the batch's features cost no further pass."""
        if self.trains(local.round) and bool(local.received["anchors"][SEEN].any()):
            layer = find_classifier(local.manifest, self.parameters.classifier)
            local.scratch["layer"] = layer
            listen(local, find_module(local.model, layer))

    def extra_loss(self, local: LocalRound, batch: Batch) -> Tensor | None:
        if "layer" not in local.scratch:
            return None
        labels = check_labels(batch.targets, local.scratch["layer"])
        anchors = local.received["anchors"]
        loss = matching_loss(
            local.scratch[FEATURES], labels, anchors[ANCHORS], anchors[SEEN] > 0, self.parameters.temperature
        )
        return self.parameters.mu * loss

    def finish(self, local: LocalRound) -> LocalFinish:
        """Sums of features where the model was measured, zeros where it was trained."""
        import torch

        stop_listening(local)
        layer = find_classifier(local.manifest, self.parameters.classifier)
        if not self.trains(local.round):
            return LocalFinish(uploads={"features": measure(local, layer, self.tells)})
        specs = sum_specs(layer, self.tells)
        zeros = {spec.name: torch.zeros(spec.shape, dtype=torch.float64) for spec in specs}
        return LocalFinish(uploads={"features": zeros})

    def combine(self, server: ServerRound) -> Combined:
        """A training round averages the models, a measuring round leaves the model and makes anchors."""
        before = server.state["anchors"]
        if self.trains(server.round):
            return Combined(server.mean(), state={"anchors": dict(before)})
        sums = server.total("features")
        seen = sums[COUNTS] > 0
        means = sums[SUMS] / sums[COUNTS].clamp(min=1)[:, None]
        anchors = {
            ANCHORS: means.where(seen[:, None], before[ANCHORS].double()),
            SEEN: seen.double().maximum(before[SEEN].double()),
        }
        return Combined(dict(server.model), state={"anchors": anchors})


def matching_loss(
    features: Tensor, labels: Tensor, anchors: Tensor, seen: Tensor, temperature: float
) -> Tensor:
    """``-log softmax_c(cos(f, a_c) / T)`` at the label, mean over the batch: contrastive guiding.

    ``features`` (B, ...) are flattened to (B, F), ``anchors`` (C, F); ``seen`` (C,) says which classes have
    one. Examples of other classes are left out; 0 if none remains. In float32 at least.
    """
    from torch import float32, promote_types
    from torch.nn.functional import cross_entropy, normalize

    flat = features.flatten(1)
    wide = flat.to(promote_types(flat.dtype, float32))
    cosines = normalize(wide) @ normalize(anchors.to(wide.dtype)).T / temperature  # (B, C)
    kept = seen[labels]
    losses = cross_entropy(cosines.masked_fill(~seen, float("-inf"))[kept], labels[kept], reduction="sum")
    return losses / kept.sum().clamp(min=1)
