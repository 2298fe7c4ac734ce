"""Differential privacy of a run's training: what a run may ask for, and what it cannot go with.

The noise and the accounting are in :mod:`shared.training.private` and :mod:`shared.training.accountant`, what
algorithms and models it cannot go with in :mod:`shared.training.private_checks`.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from shared.frozen import Frozen
from shared.weightings.base import Need

__all__ = ["LARGEST_EPSILON", "PrivateTraining", "find_conflict"]

LARGEST_EPSILON = 100.0
"""Beyond it the guarantee says nothing: such a run is refused, not counted."""


class PrivateTraining(Frozen):
    """DP-SGD at each client: the gradient of every example is clipped, and noise is added to their sum.

    One of ``epsilon`` and ``noise_multiplier``: what one example may lose over the whole run, for which each
    site finds its noise, or the noise, from which each site finds what is lost.
    """

    epsilon: float | None = Field(
        None, ge=0.01, le=LARGEST_EPSILON, description="privacy loss of an example over all rounds"
    )
    noise_multiplier: float | None = Field(
        None, ge=0.1, le=1000, description="standard deviation of the noise on a sum of gradients, over clip"
    )
    delta: float = Field(1e-5, gt=0, le=1e-2, description="below one over the examples of every site")
    clip: float = Field(1.0, gt=0, description="the largest length of one example's gradient")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        given = [name for name in ("epsilon", "noise_multiplier") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of epsilon and noise_multiplier, received {' and '.join(given) or 'none'}"
            )
        return self


def find_conflict(
    *,
    weighting: str,
    needs: frozenset[Need],
    clip_norm: float | None,
    class_weights: object,
    loss: str | None,
) -> str | None:
    """Why a run of these settings cannot have ``dp``; None if nothing speaks against it.

    Everything that a site tells of its examples beside noised gradients, or that ties one example's gradient
    to another example, would be outside of what is accounted for.
    """
    reasons = {
        f"weighting {weighting} asks for losses on the training examples, to which no noise is added": bool(
            needs & {Need.START_LOSS, Need.END_LOSS}
        ),
        "local.clip_norm clips the mean of a batch, dp.clip the gradient of each example; leave it out": (
            clip_norm is not None
        ),
        "local.class_weights: balanced goes by the site's label counts, so that one example changes the "
        "gradients of others; write the weights out": class_weights == "balanced",
        f"local.loss {loss} may tie one example to another; take the task's": loss is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
