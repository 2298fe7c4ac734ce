"""Smaller updates: what a run may ask for, and what it cannot go with.

How an update is packed and read again is in :mod:`shared.wire.packing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from shared.frozen import Frozen

__all__ = ["Compression"]

_SHARE = 0.01


class Compression(Frozen):
    """How clients send what their training changed, in place of the model that it made.

    ``bfloat16`` and ``int8`` send every parameter's change in 2 and 1 bytes, ``top-k`` the largest changes of
    each tensor only, in 8 bytes each. What is left out is added to the client's next update: Seide et al.,
    Interspeech 2014 (error feedback), Alistarh et al., NeurIPS 2017 (a scale a tensor), Stich et al., NeurIPS
    2018 (top-k with memory).

    >>> Compression.model_validate("top-k").count_kept(62_006)
    621
    """

    kind: Literal["bfloat16", "int8", "top-k"]
    share: float | None = Field(
        None,
        gt=0,
        le=0.5,
        description=f"of a tensor's numbers, those that top-k sends (at least one); None: {_SHARE}",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _share_is_of_top_k(self) -> Self:
        if self.share is not None and self.kind != "top-k":
            raise ValueError(f"share goes with top-k, not with {self.kind}, received {self.share:g}")
        return self

    @property
    def label(self) -> str:
        """
        >>> Compression(kind="top-k", share=0.05).label
        'top-k of 5 %'
        """
        if self.kind != "top-k":
            return self.kind
        return f"top-k of {100 * (self.share or _SHARE):g} %"

    def count_bytes(self, numbers: int) -> int:
        """What a tensor of so many float32 takes."""
        if self.kind == "top-k":
            return 8 * self.count_kept(numbers)
        return 2 * numbers if self.kind == "bfloat16" else numbers + 4

    def find_ratio(self, file_bytes: int, sizes: Iterable[int]) -> float:
        """How many times larger the file would be with its parameters whole, tensors of ``sizes`` numbers.

        >>> round(Compression(kind="int8").find_ratio(1254, [1000]), 2)
        3.39
        """
        saved = sum(4 * numbers - self.count_bytes(numbers) for numbers in sizes)
        return (file_bytes + saved) / file_bytes

    def count_kept(self, numbers: int) -> int:
        """How many of a tensor's numbers ``top-k`` sends."""
        return min(numbers, max(1, math.ceil((self.share or _SHARE) * numbers)))
