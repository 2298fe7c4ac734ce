"""Models by name.

A classification model says ``forward(x) = classifier(features(x))``, so that methods which look at
the representation (MOON) find it under the same two names in every model.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from torch import nn

__all__ = ["available", "build_model", "require_inputs"]

TORCHVISION = "torchvision:"


def available() -> tuple[str, ...]:
    """Names of the models written here; ``torchvision:NAME`` is understood beside them."""
    return ("mlp", "resnet18-gn", "simple-cnn", "textcnn")


def require_inputs(name: str, tokens: bool) -> None:
    """Refuse a model for texts where the task gives measured numbers, and the other way round.

    Raises:
        InvalidConfiguration: a known model that takes the other kind.
    """
    if name in available() and (name == "textcnn") != tokens:
        raise InvalidConfiguration(
            f"model: {name} takes {'numbers' if tokens else 'texts'}, "
            f"the task gives {'texts' if tokens else 'numbers'}.",
            hint="Use textcnn for texts." if tokens else "Use textcnn for texts only.",
        )


def build_model(name: str, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """A fresh model for inputs of ``input_shape`` (without the batch axis) and ``classes`` outputs.

    Initial values come from torch's global generator: ``Task.build_model`` seeds it and puts it back.

    Raises:
        InvalidConfiguration: an unknown name (near matches are listed) or inputs the model cannot take.
    """
    if name.startswith(TORCHVISION):
        from shared.models.torchvision import torchvision_model

        return torchvision_model(name.removeprefix(TORCHVISION), classes, input_shape)
    if name == "mlp":
        from shared.models.mlp import MLP

        return MLP(classes, input_shape)
    if name == "simple-cnn":
        from shared.models.simple_cnn import SimpleCNN

        return SimpleCNN(classes, input_shape)
    if name == "resnet18-gn":
        from shared.models.resnet18_gn import ResNet18GN

        return ResNet18GN(classes, input_shape)
    if name == "textcnn":
        from shared.models.textcnn import TextCNN

        return TextCNN(classes, input_shape)
    near = difflib.get_close_matches(name, available(), n=3, cutoff=0.4) or list(available())
    raise InvalidConfiguration(
        f"model: there is no model {name!r}.",
        hint=f"Did you mean {' or '.join(near)}? torchvision's models are written torchvision:NAME.",
    )
