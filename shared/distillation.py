"""Distillation after the average: what a run may ask for, and what it cannot go with.

How a model is distilled is in :mod:`shared.training.distillation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from shared.frozen import Frozen

__all__ = ["CHECK_EVERY", "Distillation", "Distilled"]

CHECK_EVERY = 100
"""Steps between two looks at the examples that are held out."""


class Distillation(Frozen):
    """The averaged model learns to say what the clients' models say together, on examples without labels.

    FedDF, algorithm 1: ``x <- x - rate grad KL(softmax(mean_k f(y_k)) || softmax(f(x)))`` from x, the model
    that algorithm and weights made, by Adam whose rate falls to 0 along a cosine over ``steps``. Their code
    clips gradients to norm 5, which the paper does not say.
    """

    citation: ClassVar[str] = (
        "Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning. "
        "NeurIPS 2020."
    )

    kind: Literal["feddf"] = "feddf"
    steps: int = Field(10_000, ge=1, le=1_000_000, description="of Adam in each round, at most")
    patience: int = Field(
        1000, ge=1, description="steps without a smaller divergence on the held-out examples, then it ends"
    )
    held_out: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of the examples on which the student is only looked at; 0: all steps are made",
    )
    batch_size: int = Field(128, ge=1)
    learning_rate: float = Field(1e-3, gt=0, description="of Adam")
    clip_norm: float | None = Field(5.0, gt=0, description="of a gradient; None: as it is")
    examples: int | None = Field(None, ge=2, description="so many of those dealt to no client; None: all")
    ensemble: Literal["uniform", "weights"] = Field(
        "uniform",
        description="how the clients' logits are averaged: alike, as in the paper, or by the round's weights",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    def find_coefficients(self, weights: Mapping[int, float]) -> dict[int, float]:
        """What each client's outputs count, by index, of the round's weights; they sum to one.

        >>> Distillation().find_coefficients({2: 0.0, 5: 1.0})
        {2: 0.5, 5: 0.5}
        >>> Distillation(ensemble="weights").find_coefficients({2: 0.0, 5: 1.0})
        {5: 1.0}
        """
        if self.ensemble == "uniform":
            return {index: 1 / len(weights) for index in sorted(weights)}
        return {index: weights[index] for index in sorted(weights) if weights[index] > 0}


@dataclass(frozen=True)
class Distilled:
    """What came of a round's distillation: steps made, and after how many the model was best (0: before all).

    ``before`` and ``after`` are the divergences from the ensemble on the held-out examples, of the averaged
    model and of the one chosen; None: none were held out. ``left_out`` are clients whose models' outputs were
    no finite numbers.
    """

    steps: int
    chosen: int
    before: float | None
    after: float | None
    left_out: tuple[int, ...] = ()
