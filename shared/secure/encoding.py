"""The bytes that are signed, hashed or authenticated."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["encode"]


def encode(purpose: str, *parts: Any) -> bytes:
    """What is signed, hashed or authenticated, unambiguously: no two lists of parts give the same bytes."""
    shown = [part.hex() if isinstance(part, bytes) else part for part in parts]
    return json.dumps(["feddisco-secure-1", purpose, *shown], separators=(",", ":")).encode()
