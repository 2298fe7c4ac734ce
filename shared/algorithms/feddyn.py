"""FedDyn: a dynamic regulariser that makes the clients' minima agree with the global one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from shared.algorithms.base import (
    Algorithm,
    Combined,
    DynamicParameters,
    LocalFinish,
    LocalRound,
    ServerRound,
    Sum,
)

__all__ = ["FedDyn", "FedDynParameters"]


class FedDynParameters(DynamicParameters):
    scaled_terms: Literal["all", "linear"] = Field(
        "all",
        description="what alpha_scaling applies to: the whole regulariser, as in the authors' code, or only "
        "its terms linear in the weights, as in the FedDisco code (other local problems, the same limit)",
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
    private = ("drift",)
    keeps = ("gradient",)
    sums = (Sum("model", "weight"), Sum("model", "clients"))

    def _alpha(self, local: LocalRound) -> float:
        return self.parameters.alpha / self.parameters.scale(local)

    def on_gradient(self, local: LocalRound) -> None:
        """``linear``: ``alpha w - alpha_k x`` in place of ``alpha_k (w - x)``, alpha_k the scaled one."""
        alpha = self._alpha(local)
        rest = self.parameters.alpha - alpha if self.parameters.scaled_terms == "linear" else 0.0
        for name, parameter in local.parameters.items():
            if parameter.grad is not None:
                parameter.grad.sub_(local.kept["gradient"][name])
                parameter.grad.add_(parameter.detach() - local.start[name], alpha=alpha)
                if rest:
                    parameter.grad.add_(parameter.detach(), alpha=rest)

    def finish(self, local: LocalRound) -> LocalFinish:
        alpha = self._alpha(local)
        gradient = {
            name: local.kept["gradient"][name] - alpha * (parameter.detach() - local.start[name])
            for name, parameter in local.parameters.items()
        }
        return LocalFinish(kept={"gradient": gradient})

    def combine(self, server: ServerRound) -> Combined:
        mean = server.mean()
        drift = server.mean_displacement()
        for name, change in drift.items():
            change.add_(server.state["drift"][name])
        sent = {name: mean[name] + drift[name] for name in mean}
        return Combined(model=sent, score=mean, state={"drift": drift})
