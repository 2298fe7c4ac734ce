"""Federated algorithms: one file each, and the file's name is the registry.

``fedprox`` is ``shared/algorithms/fedprox.py``; ``package.module:attribute`` is somebody's own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from shared.algorithms.base import Algorithm
from shared.config import AlgorithmChoice, RunConfig
from shared.own_parts import import_attribute
from shared.problems import InvalidConfiguration
from shared.value_faults import say_value_fault

__all__ = ["available", "check_optimizer", "load_algorithm"]


def available() -> tuple[str, ...]:
    """Names of the built-in algorithms, in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "base"))


def load_algorithm(choice: AlgorithmChoice) -> Algorithm[Any]:
    """The algorithm chosen, with its parameters checked.

    Raises InvalidConfiguration: unknown name (the known ones are listed), something that can't be imported or
    is no Algorithm, or a parameter that is not valid (field and value are named).
    """
    kind = _imported(choice.name) if ":" in choice.name else _built_in(choice.name)
    try:
        parameters = kind.Parameters.model_validate(choice.parameters)
    except ValidationError as error:
        raise InvalidConfiguration(
            f"parameters of algorithm {choice.name!r}: {_explain(error)}",
            hint=f"Its parameters are: {', '.join(kind.Parameters.model_fields) or 'none'}.",
        ) from error
    return kind(parameters)


def check_optimizer(config: RunConfig, algorithm: Algorithm[Any]) -> None:
    """Raises InvalidConfiguration for an optimizer with which the algorithm's formulas do not hold."""
    if algorithm.assumes_sgd and config.local.optimizer != "sgd":
        raise InvalidConfiguration(
            f"local.optimizer: {config.algorithm.name} takes a step to be the learning rate times a "
            f"gradient, which it is not with {config.local.optimizer}",
            hint="Take sgd, or another algorithm.",
        )


def _built_in(name: str) -> type[Algorithm[Any]]:
    if name not in available():
        raise InvalidConfiguration(
            f"algorithm {name!r} is not known",
            hint=f"Built in are {', '.join(available())}; your own is package.module:attribute.",
        )
    module = importlib.import_module(f"{__name__}.{name}")
    return next(_algorithms_of(module))


def _algorithms_of(module: ModuleType) -> Iterator[type[Algorithm[Any]]]:
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, Algorithm) and found.__module__ == module.__name__:
            yield found


def _imported(name: str) -> type[Algorithm[Any]]:
    kind = import_attribute("algorithm", name, "here and at every site")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise InvalidConfiguration(
            f"{name!r} is {kind!r}, not an algorithm",
            hint="Name a subclass of shared.algorithms.base.Algorithm.",
        )
    return kind


def _explain(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, found['loc']))}={found['input']!r}: {say_value_fault(dict(found))}"
        for found in error.errors(include_url=False)
    )
