"""The words of a worker's settings that its policy has as well."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

__all__ = ["Disclosure", "Epsilon", "OnChangedData", "Sizes", "Tell"]

Disclosure = Literal["none", "noised", "exact"]
Sizes = Literal["exact", "rounded"]
OnChangedData = Literal["enrol", "decline", "continue"]
Tell = Literal["sentences", "full"]
Epsilon = Annotated[float, Field(ge=0.001, le=100, allow_inf_nan=False)]
