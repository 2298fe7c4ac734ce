"""Any classification model of torchvision by its name, untrained."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from shared.models.base import Model
from shared.models.shapes import require_images
from shared.problems import InvalidConfiguration
from shared.texts import find_nearest

__all__ = ["TorchvisionModel", "torchvision_model"]


class TorchvisionModel(Model):
    """A torchvision model whose last linear layer is taken out of it and called ``classifier``."""

    takes = "images"

    def __init__(self, features: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier


def torchvision_model(name: str, classes: int, input_shape: tuple[int, ...]) -> TorchvisionModel:
    """Build ``name`` with ``classes`` outputs.

    Raises:
        InvalidConfiguration: no such model, inputs without three channels, or a model that does not
            end in a linear layer.
    """
    builder = _builder(name)
    require_images(f"torchvision:{name}", input_shape, smallest=8, channels=3)
    # the two with side outputs in training get one output, and say how they are initialised (else they warn)
    single = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    whole = builder(weights=None, num_classes=classes, **single)
    path, layer = [(path, layer) for path, layer in whole.named_modules() if not list(layer.children())][-1]
    if not isinstance(layer, nn.Linear):
        raise InvalidConfiguration(
            f"model: torchvision:{name} ends in {type(layer).__name__} {path!r}, not in a linear layer.",
            hint="Choose a model whose last layer is linear, e.g. torchvision:resnet18.",
        )
    parent, _, attribute = path.rpartition(".")
    setattr(whole.get_submodule(parent), attribute, nn.Identity())
    return TorchvisionModel(whole, layer)


def _builder(name: str) -> Callable[..., nn.Module]:
    import torchvision.models

    known: list[str] = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        near = find_nearest(name, known, most=5)
        raise InvalidConfiguration(
            f"model: torchvision has no classification model {name!r}.",
            hint=f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(known)}.",
        )
    return cast(Callable[..., nn.Module], torchvision.models.get_model_builder(name))
