"""FedDC: a drift variable that decouples the local from the global model, and corrected gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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

if TYPE_CHECKING:
    from shared.algorithms.base import Tensors

__all__ = ["FedDC", "FedDCParameters"]


class FedDCParameters(DynamicParameters):
    gradient_term: bool = Field(
        True, description="False: without the gradient correction, as in the FedDisco code; equals FedDyn"
    )


class FedDC(Algorithm[FedDCParameters]):
    """The client minimises ``F_k(w) + alpha/2s |w - (x - h_k)|^2 + <w, g/s - g_k>`` (eq. 4).

    s is 1, or the client's relative size. Then, with ``delta = y_k - x``: ``h_k <- h_k + delta`` and
    ``g_k <- g_k - g/s - delta / (tau lr)``; on the server ``g <- g + 1/N sum_S s (g_k+ - g_k)``.
    The server keeps the mean of all h_k from the models themselves, so no drift is uploaded. Scored is the
    mean of the models, sent is mean + mean drift.

    The gradient term is applied after the optimizer's step for the reason given in SCAFFOLD. Without it there
    is no g and no g_k: nothing beside the model travels.
    """

    assumes_sgd: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling "
        "and Correction. CVPR 2022."
    )
    Parameters = FedDCParameters
    private = ("drift",)

    def __init__(self, parameters: FedDCParameters) -> None:
        super().__init__(parameters)
        corrects = parameters.gradient_term
        self.downloads = ("gradient",) if corrects else ()
        self.uploads = ("gradient_delta",) if corrects else ()
        self.keeps = ("drift", "gradient") if corrects else ("drift",)
        models = (Sum("model", "weight"), Sum("model", "clients"))
        self.sums = (*models, Sum("gradient_delta", "clients")) if corrects else models

    def on_gradient(self, local: LocalRound) -> None:
        alpha = self.parameters.alpha / self.parameters.scale(local)
        for name, parameter in local.parameters.items():
            if parameter.grad is not None:
                pull = parameter.detach() - local.start[name] + local.kept["drift"][name]
                parameter.grad.add_(pull, alpha=alpha)

    def on_step(self, local: LocalRound) -> None:
        if not self.parameters.gradient_term:
            return
        scale = self.parameters.scale(local)
        for name, parameter in local.parameters.items():
            correction = local.received["gradient"][name] / scale - local.kept["gradient"][name]
            parameter.detach().sub_(correction, alpha=local.learning_rate)

    def finish(self, local: LocalRound) -> LocalFinish:
        scale, drift, gradient, deltas = self.parameters.scale(local), {}, {}, {}
        for name, parameter in local.parameters.items():
            moved = parameter.detach() - local.start[name]
            drift[name] = local.kept["drift"][name] + moved
            if not self.parameters.gradient_term:
                continue
            change = -local.received["gradient"][name] / scale
            if local.steps:
                change.sub_(moved, alpha=local.inverse_path)
            else:  # nothing to measure: the gradient state stays
                change.zero_()
            gradient[name] = local.kept["gradient"][name] + change
            deltas[name] = scale * change
        if not self.parameters.gradient_term:
            return LocalFinish(kept={"drift": drift})
        return LocalFinish(uploads={"gradient_delta": deltas}, kept={"drift": drift, "gradient": gradient})

    def combine(self, server: ServerRound) -> Combined:
        mean = server.mean()
        drift = server.mean_displacement()
        for name, change in drift.items():
            change.add_(server.state["drift"][name])
        state = {"drift": drift}
        if self.parameters.gradient_term:
            state["gradient"] = self._gradient(server)
        sent = {name: mean[name] + drift[name] for name in mean}
        return Combined(model=sent, score=mean, state=state)

    def _gradient(self, server: ServerRound) -> Tensors:
        gradient = server.mean_over_clients("gradient_delta")
        for name, change in gradient.items():
            change.add_(server.state["gradient"][name])
        return gradient
