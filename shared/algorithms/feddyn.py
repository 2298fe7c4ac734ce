"""FedDyn: a dynamic regulariser that makes the clients' minima agree with the global one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from shared.algorithms.base import (
    Algorithm,
    AlgorithmParameters,
    Combined,
    LocalFinish,
    LocalRound,
    ServerRound,
)

__all__ = ["FedDyn", "FedDynParameters"]


class FedDynParameters(AlgorithmParameters):
    alpha: float = Field(0.01, gt=0, description="strength of the regulariser")
    alpha_scaling: Literal["common", "size"] = Field(
        "common",
        description="common: one alpha, tends to the minimiser of the unweighted mean, as in the paper; "
        "size: alpha over the client's relative size, tends to the size-weighted one, as in their code",
    )


class FedDyn(Algorithm[FedDynParameters]):
    """The client minimises ``F_k(w) - <g_k, w> + alpha/2 |w - x|^2`` (eq. 1).

    Then ``g_k <- g_k - alpha (y_k - x)``. The paper's server state is ``h <- h - alpha/N sum_S (y_k - x)``
    and its new model ``mean - h / alpha``. Kept here is
    ``drift = -h / alpha``, the mean of all displacements: the same model without a division by alpha, right
    for either alpha scaling. Scored is the mean of the models, sent is mean + drift.
    """

    citation: ClassVar[str] = (
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic "
        "Regularization. ICLR 2021."
    )
    Parameters = FedDynParameters
    private: ClassVar[tuple[str, ...]] = ("drift",)
    keeps: ClassVar[tuple[str, ...]] = ("gradient",)

    def _alpha(self, local: LocalRound) -> float:
        by_size = self.parameters.alpha_scaling == "size" and local.relative_size > 0
        return self.parameters.alpha / (local.relative_size if by_size else 1.0)

    def on_gradient(self, local: LocalRound) -> None:
        alpha = self._alpha(local)
        for name, parameter in local.parameters.items():
            if parameter.grad is not None:
                parameter.grad.sub_(local.kept["gradient"][name])
                parameter.grad.add_(parameter.detach() - local.start[name], alpha=alpha)

    def finish(self, local: LocalRound) -> LocalFinish:
        alpha = self._alpha(local)
        gradient = {
            name: local.kept["gradient"][name] - alpha * (parameter.detach() - local.start[name])
            for name, parameter in local.parameters.items()
        }
        return LocalFinish(kept={"gradient": gradient})

    def combine(self, server: ServerRound) -> Combined:
        mean = server.updates.weighted_sum(server.weights)
        drift = server.mean_displacement()
        for name, change in drift.items():
            change.add_(server.state["drift"][name])
        sent = {name: mean[name] + drift[name] for name in mean}
        return Combined(model=sent, score=mean, state={"drift": drift})
