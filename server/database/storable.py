"""Values as both databases keep them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from server.database.tables import clean_text

__all__ = ["make_storable"]

LONGEST_TEXT = 2000


def make_storable(value: Any) -> Any:
    """The value as both databases take it in JSON: no NUL, no lone surrogate, no NaN, no infinity, no essay.

    >>> make_storable({"tensor": "a" * 3000, "value": float("inf")})["value"]
    'inf'
    """
    if isinstance(value, str):
        return clean_text(value[:LONGEST_TEXT])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): make_storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_storable(item) for item in value]
    return value
