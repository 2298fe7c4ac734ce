"""FedDisco in Python: everything that the documents name, and the console script.

Names are imported when they are first asked for: ``import feddisco`` itself brings neither PyTorch nor
anything else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddisco.admin import Client
    from feddisco.loaded import LoadedModel, load
    from feddisco.local_runs import Result, simulate
    from feddisco.sweeping import SweepResult, sweep
    from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, LocalRound, ServerRound
    from shared.config import RunConfig
    from shared.data import Examples, Unlabelled
    from shared.tasks.base import Task
    from shared.weightings.base import Weighed, Weighting, WeightingRound, make_rows

_PLACES = {
    "Algorithm": "shared.algorithms.base",
    "AlgorithmParameters": "shared.algorithms.base",
    "Client": "feddisco.admin",
    "Combined": "shared.algorithms.base",
    "Examples": "shared.data",
    "LoadedModel": "feddisco.loaded",
    "LocalRound": "shared.algorithms.base",
    "Result": "feddisco.local_runs",
    "RunConfig": "shared.config",
    "ServerRound": "shared.algorithms.base",
    "SweepResult": "feddisco.sweeping",
    "Task": "shared.tasks.base",
    "Unlabelled": "shared.data",
    "Weighed": "shared.weightings.base",
    "Weighting": "shared.weightings.base",
    "WeightingRound": "shared.weightings.base",
    "load": "feddisco.loaded",
    "make_rows": "shared.weightings.base",
    "simulate": "feddisco.local_runs",
    "sweep": "feddisco.sweeping",
}

__all__ = [
    "Algorithm",
    "AlgorithmParameters",
    "Client",
    "Combined",
    "Examples",
    "LoadedModel",
    "LocalRound",
    "Result",
    "RunConfig",
    "ServerRound",
    "SweepResult",
    "Task",
    "Unlabelled",
    "Weighed",
    "Weighting",
    "WeightingRound",
    "load",
    "make_rows",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'feddisco' has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
