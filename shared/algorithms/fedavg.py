"""FedAvg: the weighted mean of the clients' models."""

from __future__ import annotations

from typing import ClassVar

from shared.algorithms.base import Algorithm, AlgorithmParameters

__all__ = ["FedAvg"]


class FedAvg(Algorithm[AlgorithmParameters]):
    """Every hook of the base class as it is: ``x <- sum_k p_k y_k`` (algorithm 1)."""

    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks "
        "from Decentralized Data. AISTATS 2017."
    )
