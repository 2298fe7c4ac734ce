"""FedSkip: between two averages, models travel: each client goes on from a model that another has trained.

Fan, Wang, Yao, Lyu, Zhang, Tian: FedSkip: Combatting Statistical Heterogeneity with Federated Skip
Aggregation. ICDM 2022. Where this module says "as in its code", that is github.com/MediaBrain-SJTU/FedSkip.

A round is drawn as ever. In the first one after an average all clients start from it, and each makes a model
that travels. In every later one the travelling models are dealt to the clients drawn, at random and one
each; a client may get its own back, as in its code. After ``average_every`` rounds they are averaged. A model
counts there by what its trainers weighed, added up over the rounds (:func:`add_up`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from shared.seeds import derive
from shared.weightings.base import Need

__all__ = ["add_up", "deal_models", "find_conflict", "find_need", "find_shares"]

SEEN = {
    Need.START_LOSS: "the loss of the received model, which is another one at each client",
    Need.END_LOSS: "losses of models that began from different ones",
    Need.UPDATES: "updates of one model, and here each client changes another",
    Need.DATA: "models that began from one, to learn how to mix them",
}
"""What of a round a weighting may need that is no longer there when models travel."""


def deal_models(seed: int, round: int, models: int, clients: int) -> tuple[int | None, ...]:
    """For each of a round's clients, in index order, the number of the model that it starts from.

    ``models`` travel, and are dealt by the run's ``seed`` and the round's number. With fewer clients than
    models some models rest; with more, some clients (None) start from the last average.

    >>> deal_models(0, 1, models=0, clients=2)
    (None, None)
    """
    generator = random.Random(derive(seed, "scatter", round))  # noqa: S311 - a reproducible draw
    order = generator.sample(range(max(models, clients)), clients)
    return tuple(number if number < models else None for number in order)


def add_up(earned: float, weight: float, examples: int) -> float:
    """What a model counts after one more round: ``earned`` before, and its trainer's ``weight`` in it.

    A round counts by ``examples``, those of all of its clients together. By sizes, a model then counts by all
    the examples that it was trained on, as in its code; where all clients take part in each round, every
    round counts the same.

    >>> add_up(10.0, weight=0.25, examples=80)
    30.0
    """
    return earned + weight * examples


def find_shares(earned: Sequence[float]) -> list[float]:
    """The models' weights in the average; they sum to one, or are all 0 if no model has earned anything."""
    total = math.fsum(earned)
    return [each / total if total else 0.0 for each in earned]


def find_conflict(
    *,
    weighting: str,
    needs: frozenset[Need],
    secure: bool,
    robust: bool,
    compressed: bool,
    distilled: bool,
    calibrated: bool,
    shadowed: bool,
) -> str | None:
    """Why a run of these settings cannot let models travel; None if nothing speaks against it."""
    reasons = {
        "with secure sums nobody holds a single model that could be handed on": secure,
        "a robust rule counts on few clients that lie, and here each reaches several models": robust,
        "a packed update says what changed in the model that all clients received": compressed,
        "calibration measures one model at all clients, and here each has another": calibrated,
        "distillation gives the average what all models say, and here nobody goes on from it": distilled,
        "a shadow is made of updates of one model, and here each client changes another": shadowed,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    return found or find_need(weighting, needs)


def find_need(weighting: str, needs: frozenset[Need]) -> str | None:
    """What a weighting of these needs looks at that is not there when models travel; None: nothing."""
    found = next((need for need in SEEN if need in needs), None)
    return None if found is None else f"weighting {weighting} looks at {SEEN[found]}"
