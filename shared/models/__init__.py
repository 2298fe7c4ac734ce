"""Models by name.

A model is the file ``shared/models/NAME.py`` (dashes as underscores) with its class under ``MODEL``, a
:class:`shared.models.base.Model`; ``torchvision:NAME`` is one of torchvision's, ``module:attribute``
anybody's own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.own_parts import import_part, is_own
from shared.problems import InvalidConfiguration
from shared.texts import find_nearest

if TYPE_CHECKING:
    from shared.models.base import Model

__all__ = ["available", "build_model", "model_class", "require_inputs"]

TORCHVISION = "torchvision:"
_HELPERS = frozenset({"base", "pretrained", "shapes", "torchvision"})


def available() -> tuple[str, ...]:
    """Names of the models written here; ``torchvision:NAME`` is understood beside them."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in modules if name not in _HELPERS))


def model_class(name: str) -> type[Model]:
    """The class of a model written here.

    Raises:
        InvalidConfiguration: an unknown name (near matches are listed).
    """
    if name not in available():
        near = find_nearest(name, available(), most=3) or available()
        raise InvalidConfiguration(
            f"model: there is no model {name!r}.",
            hint=f"Did you mean {' or '.join(near)}? torchvision's models are written torchvision:NAME.",
        )
    found: type[Model] = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").MODEL
    return found


def require_inputs(name: str, tokens: bool) -> None:
    """Refuse a model for texts where the task gives measured numbers, and the other way round.

    Raises:
        InvalidConfiguration: a known model that takes the other kind.
    """
    if name not in available() or (model_class(name).takes == "texts") == tokens:
        return
    for_texts = " or ".join(other for other in available() if model_class(other).takes == "texts")
    raise InvalidConfiguration(
        f"model: {name} takes {'numbers' if tokens else 'texts'}, "
        f"the task gives {'texts' if tokens else 'numbers'}.",
        hint=f"Use {for_texts} for texts." if tokens else f"Use {for_texts} for texts only.",
    )


def build_model(name: str, classes: int, input_shape: tuple[int, ...]) -> Model:
    """A fresh model for inputs of ``input_shape`` (without the batch axis) and ``classes`` outputs.

    ``module:attribute`` is called with (outputs, input shape), whoever's it is.

    Initial values come from torch's global generator: ``Task.build_model`` seeds it and puts it back.

    Raises:
        InvalidConfiguration: an unknown name (near matches are listed) or inputs the model cannot take.
    """
    if name.startswith(TORCHVISION):
        from shared.models.torchvision import torchvision_model

        return torchvision_model(name.removeprefix(TORCHVISION), classes, input_shape)
    build: Callable[[int, tuple[int, ...]], Model] = (
        import_part("model", name) if is_own(name) else model_class(name)
    )
    return build(classes, input_shape)
