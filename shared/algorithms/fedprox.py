"""FedProx: local training that is pulled back to the model received."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalRound

__all__ = ["FedProx", "FedProxParameters"]


class FedProxParameters(AlgorithmParameters):
    mu: float = Field(0.01, ge=0, description="strength of the pull; 0 is FedAvg")


class FedProx(Algorithm[FedProxParameters]):
    """The client minimises ``F_k(w) + mu/2 |w - x|^2`` (eq. 2); the server is FedAvg's."""

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
