"""FedDisco in Python: everything that the documents name, and the console script.

Names are imported when they are first asked for: ``import feddisco`` itself brings neither PyTorch nor
anything else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddisco.loaded import LoadedModel, load

_PLACES = {
    "LoadedModel": "feddisco.loaded",
    "load": "feddisco.loaded",
}

__all__ = ["LoadedModel", "load"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'feddisco' has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
