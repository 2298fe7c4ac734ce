"""FedProx: local training that is pulled back to the model received."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, LocalRound, ServerRound
from shared.algorithms.fednova import accumulated

__all__ = ["FedProx", "FedProxParameters"]


class FedProxParameters(AlgorithmParameters):
    mu: float = Field(0.01, ge=0, description="strength of the pull; 0 is FedAvg")
    normalised: bool = Field(
        False, description="FedNova's proximal variant: updates are normalised by their number of steps"
    )


class FedProx(Algorithm[FedProxParameters]):
    """The client minimises ``F_k(w) + mu/2 |w - x|^2`` (eq. 2); the server is FedAvg's, or FedNova's.

    Normalised, ``|a_k|`` is ``(1 - (1 - lr mu)^tau) / (lr mu)`` without momentum, and ``tau_eff`` is
    ``sum_k p_k |a_k|``, so that equal steps give FedProx (the code of FedNova takes ``sum_k p_k tau_k``).
    """

    citation: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. "
        "MLSys 2020."
    )
    Parameters = FedProxParameters

    def on_gradient(self, local: LocalRound) -> None:
        """Adds the term's gradient ``mu (w - x)``, before momentum as if it came through the loss."""
        for name, parameter in local.parameters.items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - local.start[name], alpha=self.parameters.mu)

    @property
    def divides_by_steps(self) -> bool:
        return self.parameters.normalised

    def norm(self, steps: int, learning_rate: float, momentum: float) -> float:
        if not self.parameters.normalised:
            return 1.0
        return accumulated(steps, momentum, learning_rate * self.parameters.mu)

    def combine(self, server: ServerRound) -> Combined:
        if not self.parameters.normalised:
            return super().combine(server)
        return Combined(model=server.normalised_mean(self))
