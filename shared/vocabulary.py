"""Words that settings, configurations and messages share; importing them costs next to nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from shared.own_parts import OwnPath

__all__ = ["JOIN_TOKEN_SECONDS", "AnyMetric", "Metric", "Role", "Slug", "UserRole"]

Slug = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="lower case, 1 to 63 characters")
]
Metric = Literal["kl", "l1", "l2", "cosine"]
AnyMetric = Metric | OwnPath
"""One's own is called with two arrays of shares, the client's and the target's, one entry a class."""
JOIN_TOKEN_SECONDS = 7 * 86400


class Role(StrEnum):
    TRAINER = "trainer"
    EVALUATOR = "evaluator"


class UserRole(StrEnum):
    """What a person's token is for; each may what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: UserRole) -> bool:
        order = list(UserRole)
        return order.index(self) >= order.index(other)
