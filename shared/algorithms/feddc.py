"""FedDC: a drift variable that decouples the local from the global model, and corrected gradients."""

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

__all__ = ["FedDC", "FedDCParameters"]


class FedDCParameters(AlgorithmParameters):
    alpha: float = Field(0.01, gt=0, description="strength of the pull to the drift-corrected model")
    alpha_scaling: Literal["common", "size"] = Field(
        "common",
        description="common: one alpha, tends to the minimiser of the unweighted mean, as in the paper; "
        "size: by the client's relative size, tends to the size-weighted one, as in the authors' code",
    )
    gradient_term: bool = Field(
        True, description="False: without the gradient correction, as in the FedDisco code; equals FedDyn"
    )


class FedDC(Algorithm[FedDCParameters]):
    """The client minimises ``F_k(w) + alpha/2s |w - (x - h_k)|^2 + <w, g/s - g_k>`` (eq. 4).

    s is 1, or the client's relative size. Then, with ``delta = y_k - x``: ``h_k <- h_k + delta`` and
    ``g_k <- g_k - g/s - delta / (tau lr)``; on the server ``g <- g + 1/N sum_S s (g_k+ - g_k)``.
    The server keeps the mean of all h_k from the models themselves, so no drift is uploaded. Scored is the
    mean of the models, sent is mean + mean drift.

    The gradient term is applied after the optimizer's step for the reason given in SCAFFOLD.
    """

    citation: ClassVar[str] = (
        "Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling "
        "and Correction. CVPR 2022."
    )
    Parameters = FedDCParameters
    downloads: ClassVar[tuple[str, ...]] = ("gradient",)
    private: ClassVar[tuple[str, ...]] = ("drift",)
    uploads: ClassVar[tuple[str, ...]] = ("gradient_delta",)
    keeps: ClassVar[tuple[str, ...]] = ("drift", "gradient")

    def _scale(self, local: LocalRound) -> float:
        by_size = self.parameters.alpha_scaling == "size" and local.relative_size > 0
        return local.relative_size if by_size else 1.0

    def on_gradient(self, local: LocalRound) -> None:
        alpha = self.parameters.alpha / self._scale(local)
        for name, parameter in local.parameters.items():
            if parameter.grad is not None:
                pull = parameter.detach() - local.start[name] + local.kept["drift"][name]
                parameter.grad.add_(pull, alpha=alpha)

    def on_step(self, local: LocalRound) -> None:
        if not self.parameters.gradient_term:
            return
        for name, parameter in local.parameters.items():
            correction = local.received["gradient"][name] / self._scale(local) - local.kept["gradient"][name]
            parameter.detach().sub_(correction, alpha=local.learning_rate)

    def finish(self, local: LocalRound) -> LocalFinish:
        """Without a step, or without the gradient term, the gradient state stays."""
        scale, drift, gradient, deltas = self._scale(local), {}, {}, {}
        for name, parameter in local.parameters.items():
            moved = parameter.detach() - local.start[name]
            drift[name] = local.kept["drift"][name] + moved
            change = -local.received["gradient"][name] / scale
            if local.steps and self.parameters.gradient_term:
                change.sub_(moved, alpha=1 / (local.steps * local.learning_rate))
            else:
                change.zero_()
            gradient[name] = local.kept["gradient"][name] + change
            deltas[name] = scale * change
        return LocalFinish(uploads={"gradient_delta": deltas}, kept={"drift": drift, "gradient": gradient})

    def combine(self, server: ServerRound) -> Combined:
        mean = server.updates.weighted_sum(server.weights)
        drift = server.mean_displacement()
        uniform = {info.index: 1 / server.clients for info in server.updates.infos}
        gradient = server.updates.weighted_sum(uniform, "gradient_delta")
        for name in mean:
            drift[name].add_(server.state["drift"][name])
            gradient[name].add_(server.state["gradient"][name])
        sent = {name: mean[name] + drift[name] for name in mean}
        return Combined(model=sent, score=mean, state={"drift": drift, "gradient": gradient})
