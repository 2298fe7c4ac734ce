"""FedAvgM: FedAvg with momentum on the server."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound

__all__ = ["FedAvgM", "FedAvgMParameters"]


class FedAvgMParameters(AlgorithmParameters):
    beta: float = Field(0.5, ge=0, lt=1, description="server momentum; 0 is FedAvg")
    server_learning_rate: float = Field(1.0, gt=0)
    damped: bool = Field(
        False, description="scale the new change by 1 - beta, as the MOON and FedDisco code does"
    )


class FedAvgM(Algorithm[FedAvgMParameters]):
    """``v <- beta v + (x - sum_k p_k y_k)``, ``x <- x - lr v`` (section 3), v = 0 at the start.

    In the steady state the undamped step is 1 / (1 - beta) times as long as FedAvg's, the damped one equal.
    """

    citation: ClassVar[str] = (
        "Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification. arXiv:1909.06335, 2019."
    )
    Parameters = FedAvgMParameters
    private: ClassVar[tuple[str, ...]] = ("momentum",)

    def combine(self, server: ServerRound) -> Combined:
        chosen = self.parameters
        gain = 1 - chosen.beta if chosen.damped else 1.0
        model = server.updates.weighted_sum(server.weights)
        momentum = {}
        for name, mean in model.items():
            x = server.model[name]
            velocity = (x - mean).mul_(gain).add_(server.state["momentum"][name], alpha=chosen.beta)
            momentum[name] = velocity
            model[name] = x - chosen.server_learning_rate * velocity
        return Combined(model=model, state={"momentum": momentum})
