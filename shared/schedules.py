"""How the clients' learning rate goes over the rounds of a run."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from shared.frozen import Frozen
from shared.own_parts import OwnPath, import_part
from shared.problems import InvalidConfiguration

__all__ = ["CONSTANT", "Schedule"]


class Schedule(Frozen):
    """A factor of the learning rate in each round, the first of which is 1.

    ``cosine``: from 1 towards 0 at the end of the run. ``step``: times ``factor`` after every so many rounds.
    One's own: a function of (round, rounds), called where the run is trained and where it is aggregated.
    """

    kind: Literal["constant", "cosine", "step"] | OwnPath = "constant"
    every: int | None = Field(None, ge=1, description="step: rounds")
    factor: float | None = Field(None, gt=0, le=1, description="step: what the rate is multiplied by")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = (self.every is not None, self.factor is not None)
        if given != (self.kind == "step",) * 2:
            raise ValueError(f"every and factor go with step, both of them, received {self.kind}")
        return self

    @property
    def goes_by_rounds(self) -> bool:
        """Whether past rounds depend on how many the run has in all."""
        return self.kind == "cosine" or ":" in self.kind

    def find_factor(self, number: int, rounds: int) -> float:
        """Of round ``number``, from 1, of ``rounds``.

        Raises InvalidConfiguration where one's own function gives no finite number above 0.

        >>> [round(Schedule(kind="cosine").find_factor(n, 4), 3) for n in (1, 2, 3, 4)]
        [1.0, 0.854, 0.5, 0.146]
        >>> [Schedule(kind="step", every=2, factor=0.1).find_factor(n, 4) for n in (1, 2, 3)]
        [1.0, 1.0, 0.1]
        """
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (number - 1) / rounds))
        if self.every is not None and self.factor is not None:
            return self.factor ** ((number - 1) // self.every)
        found = import_part("local.schedule", self.kind)(number, rounds)
        if not (isinstance(found, int | float) and math.isfinite(found) and found > 0):
            raise InvalidConfiguration(f"local.schedule: {self.kind!r} gave {found!r} for round {number}.")
        return float(found)


CONSTANT = Schedule()
