"""FedOpt: FedAdagrad, FedAdam and FedYogi, adaptive optimizers on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FedOpt", "FedOptParameters"]


class FedOptParameters(AlgorithmParameters):
    variant: Literal["adagrad", "adam", "yogi"] = "adam"
    server_learning_rate: float = Field(0.1, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1, description="not used by adagrad")
    tau: float = Field(1e-3, gt=0, description="adaptivity: the larger, the nearer to FedAvgM")


class FedOpt(Algorithm[FedOptParameters]):
    """``m <- b1 m + (1 - b1) D``, ``x <- x + lr m / (sqrt(v) + tau)`` (algorithm 2).

    ``D = sum_k p_k (y_k - x)``; v starts at tau^2 and there is no bias correction, as in the paper. What is
    stored is ``v - tau^2``, so that the zeros of a first round mean that start; its rounding
    error is far below tau^2 in float32.
    """

    citation: ClassVar[str] = (
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization. "
        "ICLR 2021."
    )
    Parameters = FedOptParameters
    private = ("first_moment", "second_moment_excess")

    def combine(self, server: ServerRound) -> Combined:
        chosen = self.parameters
        model = server.mean()
        first, excess = {}, {}
        for name, mean in model.items():
            x = server.model[name]
            change = mean - x
            m = chosen.beta1 * server.state["first_moment"][name] + (1 - chosen.beta1) * change
            v = self._second_moment(server.state["second_moment_excess"][name], change)
            first[name], excess[name] = m, v - chosen.tau**2
            model[name] = x + chosen.server_learning_rate * m / (_find_root(v) + chosen.tau)
        return Combined(model=model, state={"first_moment": first, "second_moment_excess": excess})

    def _second_moment(self, excess: Tensor, change: Tensor) -> Tensor:
        chosen, square = self.parameters, change.square()
        v = (excess + chosen.tau**2).clamp_(min=0)
        if chosen.variant == "adagrad":
            return v + square
        if chosen.variant == "adam":
            return chosen.beta2 * v + (1 - chosen.beta2) * square
        return v - (1 - chosen.beta2) * square * (v - square).sign()


def _find_root(values: Tensor) -> Tensor:
    """Of each value, correctly rounded, so that a round is replayed with the same bits on every processor.

    The last bit of PyTorch's differs from one maker's processors to another's.
    """
    import numpy as np

    roots = values.clone()
    np.sqrt(roots.numpy(), out=roots.numpy())
    return roots
