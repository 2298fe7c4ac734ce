"""Dealing one data set to many clients, for demos and experiments (reference 4).

NIID-1 is the Dirichlet allocation of NIID-Bench (Li et al., ICDE 2022) and NIID-2 that of FedDisco
(Ye et al., ICML 2023). Both use NumPy's legacy generator, whose stream is frozen, so that published
allocations come out the same. All indices are positions in the data set's own order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.config import Partition
from shared.problems import InvalidConfiguration
from shared.seeds import derive

__all__ = ["Indices", "imbalance", "partition", "table"]

Indices = NDArray[np.int64]

MINIMUM = 10
"""NIID-1: an allocation in which a client has fewer examples is drawn again."""

REDRAWS = 5_000


def partition(
    spec: Partition, targets: NDArray[np.integer], classes: int, seed: int, *, rho: float = 1.0
) -> list[Indices]:
    """Positions of each client's examples: disjoint, in a random order, one array a client.

    ``targets`` holds the class indices, shape (N,); ``seed`` is used where ``spec.seed`` is None. With
    ``rho`` > 1 (NIID-1 only) the classes are first thinned to ``imbalance(counts, rho)``.

    Raises:
        InvalidConfiguration: the data set cannot be dealt like that; says why.
    """
    targets = np.asarray(targets)
    if targets.size and not (targets.min() >= 0 and targets.max() < classes):
        raise InvalidConfiguration(
            f"partition: targets go from {targets.min()} to {targets.max()}, but there are {classes} classes."
        )
    if rho != 1.0 and spec.kind != "niid1":
        raise InvalidConfiguration(f"partition: rho {rho} goes with niid1, not with {spec.kind}.")
    members = [np.flatnonzero(targets == label).astype(np.int64) for label in range(classes)]
    random = _generator(seed if spec.seed is None else spec.seed)
    if spec.kind == "iid":
        return _iid(spec, len(targets), random)
    if spec.kind == "niid2":
        return _niid2(spec, members, random)
    return _niid1(spec, members, random, imbalance([len(indices) for indices in members], rho))


def imbalance(counts: Sequence[int], rho: float) -> list[int]:
    """What each class keeps: ``floor(n_c rho^(-c / (C - 1)))``, so the last keeps one in ``rho``.

    >>> imbalance([5000] * 3, 10.0)
    [5000, 1581, 500]

    Raises:
        InvalidConfiguration: ``rho`` below 1.
    """
    if rho < 1:
        raise InvalidConfiguration(f"partition: rho is {rho}, but no class can be made larger (rho >= 1).")
    last = max(1, len(counts) - 1)
    # rounded first: 5000 * 10**-1 may come out as 499.99999999999994
    return [math.floor(round(count * rho ** (-label / last), 6)) for label, count in enumerate(counts)]


def table(parts: Sequence[Indices], targets: NDArray[np.integer], classes: Sequence[str]) -> str:
    """The class-by-client table as text: one line a client, its count of each class and its size.

    >>> print(table([np.array([0, 1]), np.array([2])], np.array([0, 1, 1]), ["cat", "dog"]))
    client  cat  dog  all
         0    1    1    2
         1    0    1    1
       all    1    2    3
    """
    targets = np.asarray(targets)
    counts = np.array([np.bincount(targets[part], minlength=len(classes)) for part in parts])
    rows = [["client", *classes, "all"]]
    rows += [[str(client), *map(str, row), str(row.sum())] for client, row in enumerate(counts)]
    rows.append(["all", *map(str, counts.sum(axis=0)), str(counts.sum())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def _generator(seed: int) -> np.random.RandomState:
    """The legacy generator takes 32 bits; larger seeds are hashed into them."""
    return np.random.RandomState(seed if 0 <= seed < 2**32 else derive(seed, "partition") % 2**32)


def _iid(spec: Partition, examples: int, random: np.random.RandomState) -> list[Indices]:
    if examples < spec.clients:
        raise InvalidConfiguration(
            f"partition: {examples} examples cannot be dealt to {spec.clients} clients.",
            hint="Lower partition.clients.",
        )
    return np.array_split(random.permutation(examples).astype(np.int64), spec.clients)


def _niid1(
    spec: Partition, members: list[Indices], random: np.random.RandomState, keep: list[int]
) -> list[Indices]:
    if sum(keep) < MINIMUM * spec.clients:
        raise InvalidConfiguration(
            f"partition: niid1 gives each of {spec.clients} clients at least {MINIMUM} examples, "
            f"but there are {sum(keep)} in all.",
            hint="Lower partition.clients.",
        )
    for _ in range(REDRAWS):
        parts = _dirichlet(spec, members, random, keep)
        if parts is not None and min(map(len, parts)) >= MINIMUM:
            for part in parts:
                random.shuffle(part)
            return parts
    raise InvalidConfiguration(
        f"partition: in {REDRAWS} draws with beta {spec.beta} never had all {spec.clients} clients "
        f"at least {MINIMUM} of {sum(keep)} examples.",
        hint="Raise partition.beta, lower partition.clients, or try another partition.seed.",
    )


def _dirichlet(
    spec: Partition, members: list[Indices], random: np.random.RandomState, keep: list[int]
) -> list[Indices] | None:
    """One draw of the whole allocation (reference 4.1); None where a class found no taker."""
    fair_share = sum(map(len, members)) / spec.clients  # of the data as they were before thinning
    pieces: list[list[Indices]] = [[] for _ in range(spec.clients)]
    sizes = np.zeros(spec.clients, dtype=np.int64)
    for indices, kept in zip(members, keep, strict=True):
        shuffled = indices.copy()
        random.shuffle(shuffled)
        shares = random.dirichlet(np.repeat(spec.beta, spec.clients)) * (sizes < fair_share)
        if not shares.sum() > 0:
            return None
        cuts = (np.cumsum(shares / shares.sum()) * kept).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(shuffled[:kept], cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(piece) for piece in pieces]


def _niid2(spec: Partition, members: list[Indices], random: np.random.RandomState) -> list[Indices]:
    """Biased client i owns a fifth of the classes, from (C/5)i mod C on; unbiased ones see all (4.2)."""
    classes, biased = len(members), spec.clients - spec.unbiased
    if classes % 5:
        raise InvalidConfiguration(
            f"partition: niid2 needs a number of classes that is a multiple of 5, not {classes}.",
            hint="Use niid1, or a task with such a number of classes.",
        )
    # equals floor(N / (C clients)) wherever that many can be taken of every class
    shard = min(map(len, members)) // spec.clients
    if shard == 0:
        raise InvalidConfiguration(
            f"partition: niid2 takes at least one example of each class for each of {spec.clients} clients, "
            f"but the smallest class has {min(map(len, members))}.",
            hint="Lower partition.clients.",
        )
    owned = classes // 5
    parts = []
    for client in range(spec.clients):
        if client < biased:
            labels = [(owned * client + offset) % classes for offset in range(owned)]
            first, take = 5 * shard * (client // 5), 5 * shard
        else:
            labels, first, take = list(range(classes)), shard * client, shard
        part = np.concatenate([members[label][first : first + take] for label in labels])
        random.shuffle(part)
        parts.append(part)
    return parts
