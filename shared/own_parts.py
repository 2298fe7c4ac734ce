"""Parts of somebody's own, by import path: code that was installed where it runs, and never sent."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from shared.problems import InvalidConfiguration

__all__ = ["PATH", "OwnPath", "import_attribute", "import_part", "is_own"]

PATH = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
OwnPath = Annotated[str, Field(pattern=rf"^{PATH}$", max_length=200, description="module:attribute")]


def is_own(name: str | None) -> bool:
    """Whether the name is an import path; ``torchvision:NAME`` is none.

    >>> is_own("ours.nets:Small"), is_own("mlp"), is_own("torchvision:resnet18")
    (True, False, False)
    """
    return name is not None and ":" in name and not name.startswith("torchvision:")


def import_attribute(what: str, path: str, where: str = "where the run is trained") -> object:
    """What ``module:attribute`` names; ``what`` is said of it, and ``where`` its package has to be.

    Raises:
        InvalidConfiguration: it cannot be imported.
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever somebody's own module raises while it is imported
        raise InvalidConfiguration(
            f"{what} {path!r} cannot be imported: {error}",
            hint=f"Install its package {where}, and check the spelling.",
        ) from error


def import_part(what: str, path: str) -> Callable[..., Any]:
    """What ``module:attribute`` names, which can be called; ``what`` is the setting that names it.

    Raises:
        InvalidConfiguration: it cannot be imported, or cannot be called.
    """
    found = import_attribute(f"{what}:", path)
    if not callable(found):
        raise InvalidConfiguration(f"{what}: {path!r} is {found!r}, which cannot be called.")
    return found
