"""The names of files that are written beside another one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

__all__ = ["place_beside"]


def place_beside(out: Path, suffix: str, own: Collection[str]) -> Path:
    """``out`` with another suffix if it has one of its format's ``own``, and else with one more.

    What else follows a dot is part of its name: ``lr0.5`` and ``lr0.1`` share no file, and none is ``out``.

    >>> place_beside(Path("a.jsonl"), ".safetensors", (".jsonl",)).name
    'a.safetensors'
    >>> place_beside(Path("lr0.5"), ".safetensors", (".jsonl",)).name
    'lr0.5.safetensors'
    """
    return out.with_name((out.stem if out.suffix in own else out.name) + suffix)
