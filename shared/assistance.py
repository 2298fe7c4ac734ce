"""The assistant of a run: an evaluator that does, on its own data, the step of a round that needs some."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from shared.frozen import Frozen
from shared.vocabulary import Slug

__all__ = ["LARGEST_LEARNED", "AnyAssistant", "Assistant", "AssistedWork"]

AssistedWork = Literal["distil", "learn"]
"""What it does: ``distil`` the round's average, or ``learn`` what a weighting makes its weights of."""

LARGEST_LEARNED: Final = 100.0
"""No number that a weighting has learned at an assistant is believed beyond it: e^100 is no weight."""


class Assistant(Frozen):
    """It is sent single updates, which only the coordinator sees otherwise. Sites know before they enrol.

    A round that it does not answer in time takes what there is without it: the average, or the weights that
    the weighting begins with.
    """

    client: Slug = Field(description="its name; it takes part as an evaluator")
    deadline_seconds: float = Field(
        3600.0, gt=0, le=30 * 86400, description="for its answer, from the moment in which it is asked"
    )


def _name_client(value: object) -> object:
    return {"client": value} if isinstance(value, str) else value


AnyAssistant = Annotated[Assistant, BeforeValidator(_name_client)]
"""An assistant, or its name alone."""
