"""How a secure sum ends early."""

from __future__ import annotations

__all__ = ["AttemptAbandoned", "ProtocolRefused"]


class ProtocolRefused(Exception):
    """A party was asked for what could give somebody's numbers away: it says why, and nothing more."""


class AttemptAbandoned(Exception):
    """The attempt has no sum and nothing of it is told; the next one begins with fresh keys."""
