"""FedNova: clients that take more steps do not pull the model towards their own minimum."""

from __future__ import annotations

from typing import ClassVar

from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound

__all__ = ["FedNova", "accumulated"]


class FedNova(Algorithm[AlgorithmParameters]):
    """``x <- x - tau_eff sum_k p_k (x - y_k) / |a_k|``, ``tau_eff = sum_k p_k |a_k|`` (eq. 8, 9).

    ``|a_k|`` is the sum of the factors with which the client's gradients entered its displacement: the number
    of steps for plain SGD, more with momentum. Equal steps give FedAvg.
    """

    citation: ClassVar[str] = (
        "Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous "
        "Federated Optimization. NeurIPS 2020."
    )

    def combine(self, server: ServerRound) -> Combined:
        """A client without a step sent x itself: nothing to normalise, and 0 in ``tau_eff``."""
        norms = {info.index: accumulated(info.steps, server.momentum) for info in server.updates.infos}
        effective = sum(p * norms[index] for index, p in server.weights.items())
        coefficients = {
            index: effective * p / norms[index] for index, p in server.weights.items() if norms[index] > 0
        }
        model = server.updates.weighted_sum(coefficients)
        remaining = 1 - sum(coefficients.values())
        for name, total in model.items():
            total.add_(server.model[name], alpha=remaining)
        return Combined(model=model)


def accumulated(steps: int, momentum: float) -> float:
    """``|a_k|_1`` after ``steps`` heavy-ball steps from a zero buffer (section 4, momentum example).

    >>> [round(accumulated(steps, 0.9), 12) for steps in (4, 2, 1)]
    [9.049, 2.9, 1.0]
    """
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
