"""Modules that take long to import and that most commands never need."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["LazyModule"]


class LazyModule:
    """Stands for a module, which is imported when something of it is first asked for.

    What was asked for is kept here, so that the next time costs what it would cost in the module itself.

    >>> math = LazyModule("math")
    >>> math.sqrt(9.0)
    3.0
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, wanted: str) -> Any:
        found = getattr(importlib.import_module(self._name), wanted)
        setattr(self, wanted, found)
        return found
