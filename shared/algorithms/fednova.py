"""FedNova: clients that take more steps do not pull the model towards their own minimum."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound
from shared.algorithms.fedavgm import MOMENTUM, with_momentum

__all__ = ["FedNova", "FedNovaParameters", "accumulated"]


class FedNovaParameters(AlgorithmParameters):
    normaliser: Literal["momentum", "steps"] = Field(
        "momentum",
        description="momentum: a gradient counts as often as the clients' momentum uses it, as in the paper; "
        "steps: once, whatever the momentum, as in the FedDisco code",
    )
    beta: float = Field(0.0, ge=0, lt=1, description="server momentum, as FedAvgM's; 0: none")


class FedNova(Algorithm[FedNovaParameters]):
    """``x <- x - tau_eff sum_k p_k (x - y_k) / |a_k|``, ``tau_eff = sum_k p_k |a_k|`` (eq. 8, 9).

    ``|a_k|`` is the sum of the factors with which the client's gradients entered its displacement: the number
    of steps for plain SGD, more with momentum. Equal steps give FedAvg. The paper's variant for proximal
    local training is FedProx with ``normalised``.
    """

    assumes_sgd: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous "
        "Federated Optimization. NeurIPS 2020."
    )
    Parameters = FedNovaParameters

    def __init__(self, parameters: FedNovaParameters) -> None:
        super().__init__(parameters)
        self.private = (MOMENTUM,) if parameters.beta else ()

    def norm(self, steps: int, learning_rate: float, momentum: float) -> float:
        return accumulated(steps, momentum if self.parameters.normaliser == "momentum" else 0.0)

    def combine(self, server: ServerRound) -> Combined:
        model = server.normalised_mean(self)
        if self.parameters.beta:
            return with_momentum(server, model, self.parameters.beta)
        return Combined(model=model)


def accumulated(steps: int, momentum: float, pull: float = 0.0) -> float:
    """``|a_k|_1`` after ``steps`` heavy-ball steps from a zero buffer (section 4).

    ``pull`` is learning rate times mu of a proximal term: what the displacement loses in a step. The sum is
    the displacement, in learning rates, that gradients of 1 lead to; with momentum as well, the recurrence is
    the exact one, which the authors' code is not.

    >>> [round(accumulated(steps, 0.9), 12) for steps in (4, 2, 1)]
    [9.049, 2.9, 1.0]
    >>> round(accumulated(4, 0.0, pull=0.05), 12) == round((1 - 0.95**4) / 0.05, 12)
    True
    """
    if pull:
        moved = velocity = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1 - pull * moved
            moved += velocity
        return moved
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
