"""What a run that lets models travel asks of its algorithm and its weighting, where these are loaded."""

from __future__ import annotations

from typing import Any

from shared.algorithms.base import Algorithm, Sum
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.travelling import find_need
from shared.weightings import load_weighting

__all__ = ["check_travelling"]


def check_travelling(config: RunConfig, algorithm: Algorithm[Any]) -> None:
    """Raise InvalidConfiguration if the run lets models travel and its algorithm or weighting cannot."""
    if config.average_every == 1:
        return
    name, weighting = config.algorithm.name, load_weighting(config.weighting)
    reasons = {
        f"algorithm {name} sends more of each client than a model": bool(algorithm.uploads),
        f"algorithm {name} keeps at each client what belongs to the model that it trained": bool(
            algorithm.keeps
        ),
        f"algorithm {name} goes by each client's way from the one model that all received": (
            algorithm.divides_by_steps or algorithm.sums != (Sum("model", "weight"),)
        ),
        f"weighting {config.weighting.kind} goes by its own earlier rounds": weighting.remembers,
        find_need(config.weighting.kind, weighting.needs): True,
    }
    for reason, holds in reasons.items():
        if reason is not None and holds:
            raise InvalidConfiguration(
                f"average_every: {reason}",
                hint="Models travel with fedavg, fedprox, fedavgm, fedopt; sizes, uniform, disco, entropy.",
            )
