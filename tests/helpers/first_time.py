"""An algorithm that keeps nothing, and yet asks whether a client takes part for the first time."""

from __future__ import annotations

from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalRound

GENTLE_START = f"{__name__}:GentleStart"


class GentleStart(Algorithm[AlgorithmParameters]):
    """FedAvg whose clients go half as far along each gradient in their first round."""

    citation = "none"

    def on_gradient(self, local: LocalRound) -> None:
        if local.first_time:
            for parameter in local.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
