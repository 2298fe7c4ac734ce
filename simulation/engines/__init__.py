"""Engines: how training is mapped over the clients of a round. The result does not depend on the engine.

How one client is computed is another choice: :mod:`simulation.kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from shared.problems import InvalidConfiguration
from simulation.jobs import ClientResult, Job

__all__ = ["Engine", "EngineName", "OpenEngine", "choose_engine"]

EngineName = Literal["in-process", "processes", "ray"]


class Engine(Protocol):
    """What trains a round's clients."""

    def map(self, jobs: Sequence[Job]) -> list[ClientResult]:
        """Carry out the jobs; results in their order."""
        ...


OpenEngine = AbstractContextManager[Engine]
"""An engine whose processes or connection end with the block."""


def choose_engine(engine: EngineName | None, processes: int, address: str | None) -> EngineName:
    """The engine named, or else the one that a number of processes or a cluster's address asks for.

    >>> choose_engine(None, 2, None)
    'processes'

    Raises:
        InvalidConfiguration: the engine named takes no such number or address.
    """
    chosen: EngineName = engine or ("ray" if address else "processes" if processes > 1 else "in-process")
    if processes > 1 and chosen != "processes":
        raise InvalidConfiguration(
            f"engine: {chosen} does not take a number of processes, received {processes}.",
            hint="Leave processes out, or choose the engine processes.",
        )
    if address and chosen != "ray":
        raise InvalidConfiguration(
            f"address: {chosen} trains on this machine, received {address}.",
            hint="Leave the address out, or choose the engine ray.",
        )
    return chosen
