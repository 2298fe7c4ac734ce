"""Who takes part in a round: a draw that depends on the run's seed and the round, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable

from shared.config import Draws
from shared.seeds import derive

__all__ = ["draw"]


def draw(
    ready: Iterable[int],
    clients_per_round: int | None,
    *,
    seed: int,
    number: int,
    attempt: int,
    draws: Draws = "seeded",
) -> tuple[int, ...]:
    """The indexes drawn for one attempt of a round, ascending.

    ``ready`` are the indexes of the clients that could take part, in any order. Without
    ``clients_per_round``, or with no more ready clients than that, everybody takes part; otherwise
    they are drawn without replacement (McMahan et al. 2017, algorithm 1: ``S_t``).

    ``draws="feddisco-release"`` draws as the program that was released with FedDisco: one generator, seeded
    once, has given the samples of all rounds before this one. It knows no second attempt of a round; there
    the draw is ``"seeded"``.

    >>> draw([4, 0, 2], None, seed=0, number=1, attempt=1)
    (0, 2, 4)
    >>> draw(range(100), 3, seed=0, number=1, attempt=1) == draw(range(100), 3, seed=0, number=1, attempt=1)
    True
    """
    indexes = sorted(ready)
    if clients_per_round is None or len(indexes) <= clients_per_round:
        return tuple(indexes)
    if draws == "feddisco-release" and attempt == 1:
        positions = _release_sample(len(indexes), clients_per_round, seed, number)
        return tuple(sorted(indexes[position] for position in positions))
    generator = random.Random(derive(seed, "participants", number, attempt))  # noqa: S311 - a reproducible draw
    return tuple(sorted(generator.sample(indexes, clients_per_round)))


def _release_sample(population: int, count: int, seed: int, number: int) -> tuple[int, ...]:
    """The ``number``-th sample (from 1) of positions; those before it are drawn again, so nothing is kept."""
    generator = random.Random(seed)  # noqa: S311 - a reproducible draw
    for _ in range(number - 1):
        generator.sample(range(population), count)
    return tuple(generator.sample(range(population), count))
