"""What the shell does after a decision is committed. Plain values, compared in tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Aggregate", "Effect", "Record", "Wake"]


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of the append-only event log, written in the same transaction as the new state."""

    kind: str
    client: str | None = None
    round: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Start the aggregation of this attempt, off the event loop."""

    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Wake:
    """These clients' long polls may have an answer now."""

    clients: tuple[str, ...]


Effect = Record | Aggregate | Wake
