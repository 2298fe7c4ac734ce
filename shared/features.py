"""What a client's examples look like to a model, summed by class: for methods that align or model features.

Features are the input of the classifier, the model's last linear layer. A client tells sums, never means, so
that those of all clients are a sum again, of which means and covariances follow exactly. They are its label
counts, and more than those (``docs/privacy.md``): a site's policy decides what it tells.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared import wire
from shared.problems import InvalidConfiguration, OutOfBounds
from shared.rules import MeanRule
from shared.schemas import TensorKind, TensorSpec

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from shared.algorithms.base import Algorithm, LocalRound, Tensors, Told
    from shared.config import RunConfig

__all__ = [
    "COUNTS",
    "FEATURES",
    "PRODUCTS",
    "SUMS",
    "Classifier",
    "check_counts",
    "check_features",
    "check_labels",
    "count_keys",
    "evaluating",
    "find_classifier",
    "find_module",
    "listen",
    "measure",
    "stop_listening",
    "sum_specs",
]

COUNTS, SUMS, PRODUCTS = "counts", "sums", "products"
FEATURES = "features"

LARGEST_ROUNDING = 1.05
"""By how much a number of examples may be above what is told of it to two significant digits."""


@dataclass(frozen=True)
class Classifier:
    """The last linear layer: its module's name, (C,) classes and (F,) features, and whether it has a bias."""

    name: str
    classes: int
    features: int
    has_bias: bool

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"


def find_classifier(manifest: Sequence[TensorSpec], name: str | None) -> Classifier:
    """The classifier of a model, by its tensors alone: the module ``name``, or the last with a matrix.

    Raises InvalidConfiguration if there is none.
    """
    specs = {spec.name: spec for spec in manifest if spec.kind is TensorKind.PARAMETER}
    matrices = [each for each, spec in specs.items() if each.endswith(".weight") and len(spec.shape) == 2]
    wanted = [each for each in matrices if name is None or each == f"{name}.weight"]
    if not wanted:
        layers = ", ".join(each.removesuffix(".weight") for each in matrices) or "none"
        raise InvalidConfiguration(
            "the model has no trainable linear layer whose input could be the features"
            if name is None
            else f"the model has no trainable linear layer {name!r} (parameter classifier)",
            hint=f"Its layers with a matrix are: {layers}.",
        )
    module = wanted[-1].removesuffix(".weight")
    classes, features = specs[wanted[-1]].shape
    return Classifier(module, classes, features, f"{module}.bias" in specs)


def sum_specs(classifier: Classifier, told: Told) -> tuple[TensorSpec, ...]:
    """The tensors that :func:`measure` makes: in float64, so that covariances survive the subtraction."""
    c, f = classifier.classes, classifier.features
    shapes = {COUNTS: (c,), SUMS: (c, f)} | ({PRODUCTS: (c, f, f)} if told == "covariances" else {})
    return tuple(TensorSpec(name=name, shape=shape, dtype="F64") for name, shape in shapes.items())


def check_features(config: RunConfig, algorithm: Algorithm[Any]) -> None:
    """Raise InvalidConfiguration if the run cannot add up what its algorithm asks of features."""
    if algorithm.tells == "nothing":
        return
    name = config.algorithm.name
    if config.secure is not None:
        raise InvalidConfiguration(
            f"secure: {name} sums features by class, which fixed point with one clip for all cannot hold",
            hint="Leave out `secure`; sites whose policy allows it then tell these sums in clear.",
        )
    if not isinstance(config.aggregation, MeanRule):
        raise InvalidConfiguration(
            f"aggregation: {name} needs sums of features over all clients, which a robust rule does not make",
            hint="Use `aggregation: mean`, or another algorithm.",
        )


# ---------------------------------------------------------------- at the coordinator


def count_keys(algorithm: Algorithm[Any], manifest: Sequence[TensorSpec]) -> list[str]:
    """Keys in an update's file of what :func:`measure` counts, for an algorithm that is told of features."""
    if algorithm.tells == "nothing":
        return []
    own = algorithm.own_specs(manifest)
    return [
        wire.key(group, COUNTS)
        for group in algorithm.uploads
        if any(spec.name == COUNTS for spec in own.get(group, ()))
    ]


def check_counts(path: Path, keys: Sequence[str], examples: int) -> None:
    """Raise OutOfBounds if the counts in a validated update cannot be those of so many ``examples``.

    Whoever counts more would have more say than its size gives it.
    """
    with wire.opened(path) as file:
        for key in keys:
            counts = file.tensor(key.removesuffix(f"/{COUNTS}"), COUNTS)
            least, total = float(counts.min()), float(counts.sum())
            if least < 0 or bool((counts != counts.round()).any()) or total > LARGEST_ROUNDING * examples:
                raise OutOfBounds(
                    f"the tensor {key!r} counts {total:g} examples, {least:g} of one class, where the client "
                    f"has {examples}",
                    hint="Counts are whole numbers from 0, and of the client's own examples.",
                )


# ---------------------------------------------------------------- at the client


def find_module(model: nn.Module, classifier: Classifier) -> nn.Module:
    """The live layer. Raises InvalidConfiguration if it is not linear."""
    from torch import nn

    found = dict(model.named_modules()).get(classifier.name)
    if not isinstance(found, nn.Linear):
        raise InvalidConfiguration(
            f"the layer {classifier.name!r} is {type(found).__name__}, not linear",
            hint="Name the classifier in the algorithm's parameter classifier.",
        )
    return found


def listen(local: LocalRound, layer: nn.Module) -> None:
    """From now on ``local.scratch[FEATURES]`` is the layer's input in the last forward pass, with its graph.

    The hook ends with :func:`stop_listening`, or by itself where the round was stopped.
    """
    owner = weakref.ref(local)

    def hear(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        live = owner()
        if live is None:  # the round was stopped: nobody called finish
            handle.remove()
        else:
            live.scratch[FEATURES] = inputs[0]

    handle = layer.register_forward_pre_hook(hear)
    local.scratch["handle"] = handle


def stop_listening(local: LocalRound) -> None:
    if (handle := local.scratch.pop("handle", None)) is not None:
        handle.remove()


def measure(local: LocalRound, classifier: Classifier, told: Told) -> Tensors:
    """Sums over all of the client's examples, by class, of the model as it is, in evaluation mode.

    ``counts`` (C,), ``sums`` of features (C, F), and for covariances ``products``, sums of f f' (C, F, F).

    Raises InvalidConfiguration if targets are no classes of this classifier.
    """
    import torch

    sums = {spec.name: torch.zeros(spec.shape, dtype=torch.float64) for spec in sum_specs(classifier, told)}
    listen(local, find_module(local.model, classifier))
    with evaluating(local.model):
        for inputs, targets in local.look():
            local.model(inputs)
            labels = check_labels(targets, classifier).cpu()
            features = _check_features(local.scratch[FEATURES].flatten(1), len(labels), classifier)
            counts = torch.bincount(labels, minlength=classifier.classes)
            sums[COUNTS] += counts
            sums[SUMS].index_add_(0, labels, features)
            if told == "covariances":
                for c in counts.nonzero().flatten().tolist():
                    own = features[labels == c]
                    sums[PRODUCTS][c] += own.T @ own
    stop_listening(local)
    return sums


def _check_features(features: Tensor, examples: int, classifier: Classifier) -> Tensor:
    """The features, on the CPU in float64; InvalidConfiguration if they are not one vector an example."""
    if features.shape != (examples, classifier.features):
        raise InvalidConfiguration(
            f"the layer {classifier.name!r} is given {list(features.shape)} numbers for {examples} examples, "
            f"not {classifier.features} for each",
            hint="Features by class are those of a layer that sees each example once.",
        )
    return features.double().cpu()


def check_labels(targets: Tensor, classifier: Classifier) -> Tensor:
    """The targets, int64 (B,), if they are classes of this classifier; else InvalidConfiguration."""
    is_label = not targets.is_floating_point() and targets.dim() == 1
    if not is_label or (len(targets) and int(targets.max()) >= classifier.classes):
        raise InvalidConfiguration(
            f"the targets are no classes of the layer {classifier.name!r}, which has {classifier.classes}",
            hint="Features by class are for classification, of a model whose last layer scores the classes.",
        )
    return targets


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradient; each module's own mode comes back (some may be frozen in it)."""
    from torch import no_grad

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
