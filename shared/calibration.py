"""Calibration of the classifier after training: what a run may ask for, and what it cannot go with.

What it does is in :mod:`shared.calibrated`, the arithmetic in :mod:`shared.virtual_features`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from shared.frozen import Frozen

__all__ = ["Calibration", "find_conflict"]


class Calibration(Frozen):
    """In its last round a run trains no model: its classifier is trained anew on virtual features (CCVR).

    >>> Calibration.model_validate("ccvr").virtual_features
    500
    """

    kind: Literal["ccvr"] = "ccvr"
    virtual_features: int = Field(
        500,
        ge=1,
        le=100_000,
        description="drawn for each class, on average: a class has its share of all examples",
    )
    epochs: int = Field(10, ge=1, le=10_000, description="of training on the virtual features")
    batch_size: int = Field(64, ge=1, le=1_000_000)
    learning_rate: float = Field(0.01, gt=0, le=1000)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0, lt=1)
    classifier: str | None = Field(
        None, max_length=500, description="the linear module to train; None: the model's last linear layer"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


def find_conflict(
    *, rounds: int, is_secure: bool, is_private: bool, is_mean: bool, stops_early: bool
) -> str | None:
    """Why a run of these settings cannot have a ``calibration``; None if nothing speaks against it."""
    reasons = {
        "the last round calibrates what the rounds before it train; take 2 rounds or more": rounds < 2,
        "sums features by class, which fixed point with one clip for all cannot hold; leave out `secure`, "
        "and sites whose policy allows it tell these sums in clear": is_secure,
        "sums features of the examples, to which no noise is added; leave out `dp`": is_private,
        "needs sums of features over all clients, which a robust rule does not make; use `aggregation: "
        "mean`": not is_mean,
        "is the run's last round, which a run that stop_when ends never comes to; leave out `stop_when` "
        "(`keep: best` goes with it)": stops_early,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
