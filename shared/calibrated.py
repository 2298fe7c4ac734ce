"""CCVR: after training, the classifier is trained anew on features like those of all clients together.

The last round of a run with ``calibration`` measures instead of training, whatever the run's algorithm: this
is the algorithm of that round. What the run's own keeps, at clients and at the server, it hands on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from shared.algorithms import load_algorithm
from shared.algorithms.base import Algorithm, Combined, LocalFinish, LocalRound, ServerRound, Told
from shared.calibration import Calibration
from shared.features import COUNTS, PRODUCTS, SUMS, Classifier, find_classifier, measure, sum_specs
from shared.problems import InvalidConfiguration, ModelDiverged
from shared.schemas import TensorSpec
from shared.seeds import torch_generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shared.config import RunConfig
    from shared.virtual_features import LinearLayer

__all__ = [
    "CLASS_SUMS",
    "Calibrated",
    "calibrate_last",
    "check_calibration",
    "find_algorithm",
    "try_measuring",
]

CLASS_SUMS = "class_sums"

LARGEST_FLOAT = 3e38
"""What a model of 32 bits can hold."""
LARGEST = 2**27
"""Numbers that all covariances, and all virtual features, may have: 1 GiB each."""


class Calibrated(Algorithm[Any]):
    """The coordinator draws ``M_c = M n_c / n`` virtual features of each class c from the Gaussian with the
    mean and covariance of all clients' examples of that class, and trains the classifier on them. All else of
    the model stays.
    """

    citation: ClassVar[str] = (
        "Luo, Chen, Hu, Zhang, Liang, Feng: No Fear of Heterogeneity: Classifier Calibration for Federated "
        "Learning with Non-IID Data. NeurIPS 2021."
    )
    uploads = (CLASS_SUMS,)
    tells: Told = "covariances"

    def __init__(self, trained_by: Algorithm[Any], options: Calibration) -> None:
        super().__init__(trained_by.parameters)
        self._trained_by = trained_by
        self.options = options
        self.downloads, self.private = trained_by.downloads, trained_by.private
        self.keeps = trained_by.keeps

    def trains(self, round: int) -> bool:
        return False

    def own_specs(self, manifest: Sequence[TensorSpec]) -> Mapping[str, Sequence[TensorSpec]]:
        layer = find_classifier(manifest, self.options.classifier)
        return {**self._trained_by.own_specs(manifest), CLASS_SUMS: sum_specs(layer, self.tells)}

    def finish(self, local: LocalRound) -> LocalFinish:
        layer = find_classifier(local.manifest, self.options.classifier)
        return LocalFinish(
            uploads={CLASS_SUMS: measure(local, layer, self.tells)},
            kept={group: dict(local.kept[group]) for group in self.keeps},
        )

    def combine(self, server: ServerRound) -> Combined:
        state = {group: dict(tensors) for group, tensors in server.state.items()}
        return Combined({**server.model, **self._retrain(server)}, state=state)

    def _retrain(self, server: ServerRound) -> dict[str, Tensor]:
        """The classifier's new tensors; none if nobody has an example."""
        import torch

        from shared.virtual_features import LinearLayer, draw_features, fit_gaussians, retrain

        sums = {name: total.numpy() for name, total in server.total(CLASS_SUMS).items()}
        gaussians = fit_gaussians(sums[COUNTS], sums[SUMS], sums[PRODUCTS])
        if not gaussians:
            return {}
        layer = self._find_layer(server.model)
        generator = torch_generator(server.seed, "calibration", server.round)
        total = self.options.virtual_features * len(gaussians)
        features, labels = draw_features(gaussians, total, generator)
        before = server.model.get(layer.bias)
        start = LinearLayer(
            server.model[layer.weight].double().numpy(), None if before is None else before.double().numpy()
        )
        after = retrain(start, features, labels, self.options, generator)
        _check_finite(after)
        return {
            name: torch.from_numpy(value)
            for name, value in ((layer.weight, after.weight), (layer.bias, after.bias))
            if value is not None
        }

    def _find_layer(self, model: Mapping[str, Tensor]) -> Classifier:
        shaped = [
            TensorSpec(name=name, shape=tuple(tensor.shape), dtype="F32") for name, tensor in model.items()
        ]
        return find_classifier(shaped, self.options.classifier)


def find_algorithm(config: RunConfig, round: int) -> Algorithm[Any]:
    """Of round ``round``: the run's own, or that of its calibration. Raises as :func:`load_algorithm`."""
    return calibrate_last(load_algorithm(config.algorithm), config, round)


def calibrate_last(algorithm: Algorithm[Any], config: RunConfig, round: int) -> Algorithm[Any]:
    """``algorithm``, the run's own, where the round is not the one that calibrates."""
    if config.calibration is None or not config.calibrates(round):
        return algorithm
    return Calibrated(algorithm, config.calibration)


def check_calibration(config: RunConfig, manifest: Sequence[TensorSpec], classes: Sequence[str]) -> None:
    """Raise InvalidConfiguration if the run's model cannot be calibrated, or not in memory."""
    options = config.calibration
    if options is None:
        return
    layer = find_classifier(manifest, options.classifier)
    if layer.classes != len(classes):
        raise InvalidConfiguration(
            f"calibration: the layer {layer.name!r} has {layer.classes} outputs for {len(classes)} classes",
            hint="It goes with classification; name the layer that scores the classes in "
            "calibration.classifier.",
        )
    _check_size("the covariances", layer.classes * layer.features**2, layer, "Name a smaller classifier.")
    drawn = options.virtual_features * layer.classes * layer.features
    _check_size("the virtual features", drawn, layer, "Lower calibration.virtual_features.")


def try_measuring(options: Calibration, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Raise InvalidConfiguration if examples cannot be measured by the model: not in the last round only."""
    from shared.wire.tensors import manifest_of

    layer = find_classifier(manifest_of(model), options.classifier)
    local = LocalRound(model, {}, {}, {}, {}, True, 1.0, 0.0, 0.0, look=lambda: iter([(inputs, targets)]))
    measure(local, layer, "means")


def _check_finite(layer: LinearLayer) -> None:
    """Raises ModelDiverged, which says what the calibration has to do with it."""
    largest = max(float(abs(each).max(initial=0.0)) for each in layer if each is not None)
    if not largest < LARGEST_FLOAT:
        raise ModelDiverged(
            "the classifier is not finite after its calibration",
            hint="Its calibration.learning_rate or weight_decay is too large. The run cannot be changed any "
            "more: stop it, and begin another from its model (feddisco run create --weights).",
        )


def _check_size(what: str, numbers: int, layer: Classifier, hint: str) -> None:
    if numbers > LARGEST:
        raise InvalidConfiguration(
            f"calibration: {what} of {layer.classes} classes with {layer.features} features are "
            f"{8 * numbers / 2**30:.1f} GiB, more than the {8 * LARGEST / 2**30:.0f} GiB that are allowed",
            hint=hint,
        )
