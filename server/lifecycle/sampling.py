"""Who takes part in a round: a draw that depends on the run's seed and the round, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable

from shared.seeds import derive

__all__ = ["draw"]


def draw(
    ready: Iterable[int], clients_per_round: int | None, *, seed: int, number: int, attempt: int
) -> tuple[int, ...]:
    """The indexes drawn for one attempt of a round, ascending.

    ``ready`` are the indexes of the clients that could take part, in any order. Without
    ``clients_per_round``, or with no more ready clients than that, everybody takes part; otherwise
    they are drawn without replacement (McMahan et al. 2017, algorithm 1: ``S_t``).

    >>> draw([4, 0, 2], None, seed=0, number=1, attempt=1)
    (0, 2, 4)
    >>> draw(range(100), 3, seed=0, number=1, attempt=1) == draw(range(100), 3, seed=0, number=1, attempt=1)
    True
    """
    indexes = sorted(ready)
    if clients_per_round is None or len(indexes) <= clients_per_round:
        return tuple(indexes)
    generator = random.Random(derive(seed, "participants", number, attempt))  # noqa: S311 - a reproducible draw
    return tuple(sorted(generator.sample(indexes, clients_per_round)))
