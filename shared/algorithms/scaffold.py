"""SCAFFOLD: control variates that take the clients' drift out of every local step."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.algorithms.base import (
    Algorithm,
    AlgorithmParameters,
    Combined,
    LocalFinish,
    LocalRound,
    ServerRound,
    Sum,
)
from shared.seeds import derive

if TYPE_CHECKING:
    from torch import nn

    from shared.algorithms.base import Tensors

__all__ = ["Scaffold", "ScaffoldParameters"]


class ScaffoldParameters(AlgorithmParameters):
    server_learning_rate: float = Field(1.0, gt=0)
    dual_weights: Literal["uniform", "same"] = Field(
        "uniform",
        description="what the control variates are averaged with: 1/N as published (the limit is then the "
        "minimiser of the unweighted mean whatever the aggregation weights), or the aggregation weights",
    )
    random_controls: int | None = Field(
        None,
        ge=0,
        description="seed of a random network that all control variates start as, as in the NIID-Bench and "
        "FedDisco code: no matter while every client takes part, a bias otherwise; None: zero, as published",
    )


class Scaffold(Algorithm[ScaffoldParameters]):
    """``y <- y - lr (g_k(y) + c - c_k)``, ``c_k+ = c_k - c + (x - y_k) / (tau lr)`` (algorithm 1, option II).

    The correction is applied after the optimizer's step, scaled by lr: the same as in the gradient for plain
    SGD, and with momentum the form that agrees with ``(x - y_k) / (tau lr)``, the displacement per step
    (corrected in the gradient, momentum 0.9 would over-correct tenfold).

    If the control variates start as a random network R, ``c - R`` and ``c_k - R`` are kept and sent: zero
    where nothing is there yet, and R is left in ``c_k+ - c_k = -(c - R) - R + (x - y_k) / (tau lr)`` alone.
    """

    assumes_sgd: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for "
        "Federated Learning. ICML 2020."
    )
    Parameters = ScaffoldParameters
    downloads = ("control",)
    uploads = ("control_delta",)
    keeps = ("control",)

    def __init__(self, parameters: ScaffoldParameters) -> None:
        super().__init__(parameters)
        uniform = parameters.dual_weights == "uniform"
        self.sums = (Sum("model", "weight"), Sum("control_delta", "clients" if uniform else "weight"))

    def on_step(self, local: LocalRound) -> None:
        for name, parameter in local.parameters.items():
            correction = local.received["control"][name] - local.kept["control"][name]
            parameter.detach().sub_(correction, alpha=local.learning_rate)

    def finish(self, local: LocalRound) -> LocalFinish:
        """Without a step there is no displacement to measure: c_k stays."""
        deltas, controls, seed = {}, {}, self.parameters.random_controls
        offsets = {} if seed is None else _random_network(local.model, seed)
        for name, parameter in local.parameters.items():
            delta = -local.received["control"][name]
            if local.steps:
                displacement = local.start[name] - parameter.detach()
                delta.add_(displacement, alpha=local.inverse_path)
                if name in offsets:
                    delta.sub_(offsets[name].to(delta.device))
            else:
                delta.zero_()
            deltas[name] = delta
            controls[name] = local.kept["control"][name] + delta
        return LocalFinish(uploads={"control_delta": deltas}, kept={"control": controls})

    def combine(self, server: ServerRound) -> Combined:
        """``c <- c + 1/N sum_S delta_k``: N, not \\|S\\|, so that c stays the mean of all clients' c_k."""
        rate = self.parameters.server_learning_rate
        model = server.mean()
        if rate != 1:
            for name, mean in model.items():
                model[name] = server.model[name] + rate * (mean - server.model[name])
        control = self._mean_delta(server)
        for name, change in control.items():
            change.add_(server.state["control"][name])
        return Combined(model=model, state={"control": control})

    def _mean_delta(self, server: ServerRound) -> Tensors:
        """``same``: p_k times the share of clients that took part; that is p_k itself when all do."""
        if self.parameters.dual_weights == "uniform":
            return server.mean_over_clients("control_delta")
        return server.mean("control_delta", scale=len(server.updates.infos) / server.clients)


def _random_network(model: nn.Module, seed: int) -> Tensors:
    """Parameters on the CPU, drawn by the model's own modules; zero for those that have no way to draw."""
    import torch

    from shared.reproducible import reproducible

    drawn = copy.deepcopy(model).to("cpu")
    with reproducible(derive(seed, "controls"), torch.device("cpu")), torch.no_grad():
        for parameter in drawn.parameters():
            parameter.zero_()
        for module in drawn.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    return {name: parameter.detach() for name, parameter in drawn.named_parameters()}
