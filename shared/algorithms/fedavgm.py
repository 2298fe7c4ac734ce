"""FedAvgM: FedAvg with momentum on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound

if TYPE_CHECKING:
    from shared.algorithms.base import Tensors

__all__ = ["MOMENTUM", "FedAvgM", "FedAvgMParameters", "with_momentum"]

MOMENTUM = "momentum"
"""The private group that :func:`with_momentum` reads and returns."""


class FedAvgMParameters(AlgorithmParameters):
    beta: float = Field(0.5, ge=0, lt=1, description="server momentum; 0 is FedAvg")
    server_learning_rate: float = Field(1.0, gt=0)
    damped: bool = Field(
        False, description="scale the new change by 1 - beta, as the MOON and FedDisco code does"
    )
    nesterov: bool = Field(
        False,
        description="step along the change and beta times the new momentum, as in the paper's experiments",
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
    private = (MOMENTUM,)

    def combine(self, server: ServerRound) -> Combined:
        chosen = self.parameters
        return with_momentum(
            server,
            server.mean(),
            chosen.beta,
            gain=1 - chosen.beta if chosen.damped else 1.0,
            rate=chosen.server_learning_rate,
            nesterov=chosen.nesterov,
        )


def with_momentum(
    server: ServerRound,
    target: Tensors,
    beta: float,
    *,
    gain: float = 1.0,
    rate: float = 1.0,
    nesterov: bool = False,
) -> Combined:
    """``D = gain (x - target)``, ``v <- beta v + D``, ``x <- x - rate v``; Nesterov: ``- rate (D + beta v)``.

    ``target`` is where the round alone would lead; it is overwritten.
    """
    momentum = {}
    for name, value in target.items():
        x = server.model[name]
        change = (x - value).mul_(gain)
        velocity = change.add(server.state[MOMENTUM][name], alpha=beta)
        momentum[name] = velocity
        target[name] = x - rate * (change.add_(velocity, alpha=beta) if nesterov else velocity)
    return Combined(model=target, state={MOMENTUM: momentum})
