"""The rules by which a data set is dealt to clients (reference 4); ``shared.data.partition`` calls them.

NIID-1 is the Dirichlet allocation of NIID-Bench (Li et al., ICDE 2022), NIID-2 that of FedDisco (Ye et
al., ICML 2023), neighbouring classes with log-normal sizes the FEMNIST of FedProx (Li et al., MLSys
2020). NumPy's legacy generator is used because its stream is frozen: published allocations come out the
same. ``members`` are the positions of each class's examples, in the data set's own order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.own_parts import import_part
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from shared.config import Partition

__all__ = ["Indices", "by_key", "iid", "imbalance", "neighbours", "niid1", "niid2", "own"]

Indices = NDArray[np.int64]

MINIMUM = 10
"""NIID-1: an allocation in which a client has fewer examples is drawn again."""

REDRAWS = 5_000

NEIGHBOURS = 5
"""Classes of a client in FedProx's paper; its released script has 3."""

SMALLEST = 5
"""Examples that each client of ``neighbours`` has beside its log-normal(4, 1) draw (FedProx)."""


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


def own(
    spec: Partition, targets: NDArray[np.integer], classes: int, random: np.random.RandomState
) -> list[Indices]:
    """What the function that ``spec.kind`` names gives for (targets, classes, clients, random, **options)."""
    deal = import_part("partition", spec.kind)
    parts = [
        np.asarray(part, dtype=np.int64)
        for part in deal(targets, classes, spec.clients, random, **spec.options)
    ]
    dealt = np.concatenate(parts) if parts else np.empty(0, np.int64)
    wrong = len(parts) != spec.clients or any(len(part) == 0 for part in parts)
    if wrong or len(np.unique(dealt)) < len(dealt) or dealt.min() < 0 or dealt.max() >= len(targets):
        raise InvalidConfiguration(
            f"partition: {spec.kind!r} does not deal {len(targets)} examples to {spec.clients} clients.",
            hint="It returns positions from 0, an array a client, none empty, and no position twice.",
        )
    return parts


def iid(spec: Partition, examples: int, random: np.random.RandomState) -> list[Indices]:
    """Shares whose sizes differ by one at most."""
    if examples < spec.clients:
        raise InvalidConfiguration(
            f"partition: {examples} examples cannot be dealt to {spec.clients} clients.",
            hint="Lower partition.clients.",
        )
    return np.array_split(random.permutation(examples).astype(np.int64), spec.clients)


def niid1(spec: Partition, members: list[Indices], random: np.random.RandomState) -> list[Indices]:
    """Each class cut by a Dirichlet draw, after thinning to ``imbalance(counts, spec.rho)``."""
    keep = imbalance([len(indices) for indices in members], spec.rho)
    if sum(keep) < MINIMUM * spec.clients:
        raise InvalidConfiguration(
            f"partition: niid1 gives each of {spec.clients} clients at least {MINIMUM} examples, "
            f"but there are {sum(keep)} in all.",
            hint="Lower partition.clients.",
        )
    for _ in range(REDRAWS):
        parts = _dirichlet(spec, members, random, keep)
        if parts is not None and min(map(len, parts)) >= MINIMUM:
            return _shuffled(parts, random)
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


def niid2(spec: Partition, members: list[Indices], random: np.random.RandomState) -> list[Indices]:
    """Biased client i owns the classes from k i mod C on, unbiased ones see all; equal sizes (4.2, 4.4).

    With k of C classes a biased client takes C/k shards of each, from the (i div C/k)-th such block on.
    """
    classes = len(members)
    owned, blocks = _owned(spec, classes)
    # equals floor(N / (C clients)) wherever that many can be taken of every class
    shard = min(map(len, members)) // spec.clients
    if shard == 0:
        raise InvalidConfiguration(
            f"partition: niid2 takes at least one example of each class for each of {spec.clients} clients, "
            f"but the smallest class has {min(map(len, members))}.",
            hint="Lower partition.clients.",
        )
    parts = []
    for client in range(spec.clients):
        if client < spec.clients - spec.unbiased:
            labels = [(owned * client + offset) % classes for offset in range(owned)]
            first, take = blocks * shard * (client // blocks), blocks * shard
        else:
            labels, first, take = list(range(classes)), shard * client, shard
        parts.append(np.concatenate([members[label][first : first + take] for label in labels]))
    return _shuffled(parts, random)


def _owned(spec: Partition, classes: int) -> tuple[int, int]:
    """Classes of a biased client, and how many such clients own every class once."""
    if spec.classes_per_client is None and classes % 5:
        raise InvalidConfiguration(
            f"partition: niid2 needs a number of classes that is a multiple of 5, not {classes}.",
            hint="Say how many classes a biased client has (niid2:4+1:2), or use niid1.",
        )
    owned = spec.classes_per_client or classes // 5
    biased = spec.clients - spec.unbiased
    if classes % owned or biased % (classes // owned):
        raise InvalidConfiguration(
            f"partition: {biased} biased clients with {owned} classes each do not cover {classes} classes "
            "equally often.",
            hint=f"Choose classes_per_client as a divisor of {classes}, and a multiple of "
            f"{classes} / classes_per_client biased clients.",
        )
    return owned, classes // owned


def neighbours(spec: Partition, members: list[Indices], random: np.random.RandomState) -> list[Indices]:
    """Client i has log-normal(4, 1) + 5 examples of the classes i, i + 1, ... mod C, in like shares (4.4).

    No example goes to two clients (in FedProx's script some do).
    """
    classes, each = len(members), spec.classes_per_client or NEIGHBOURS
    if each > classes:
        raise InvalidConfiguration(f"partition: {each} classes a client, but there are {classes}.")
    sizes = np.floor(random.lognormal(4, 1, spec.clients)).astype(np.int64) + SMALLEST
    wanted = np.zeros((spec.clients, classes), dtype=np.int64)
    for client, size in enumerate(sizes):
        for offset in range(each):
            wanted[client, (client + offset) % classes] = size // each + (offset < size % each)
    _require(wanted.sum(axis=0), members)
    stacks = [random.permutation(indices).astype(np.int64) for indices in members]
    ends = wanted.cumsum(axis=0)
    parts = [
        np.concatenate([stacks[c][ends[k, c] - wanted[k, c] : ends[k, c]] for c in range(classes)])
        for k in range(spec.clients)
    ]
    return _shuffled(parts, random)


def _require(wanted: Indices, members: list[Indices]) -> None:
    for label, (number, indices) in enumerate(zip(wanted.tolist(), members, strict=True)):
        if number > len(indices):
            raise InvalidConfiguration(
                f"partition: the clients want {number} examples of class {label}, "
                f"but there are {len(indices)}.",
                hint="Lower partition.clients, or try another partition.seed.",
            )


def by_key(spec: Partition, keys: NDArray[np.int64] | None, random: np.random.RandomState) -> list[Indices]:
    """Whole keys in their order, one a client or, with fewer clients, nearly equally many."""
    if keys is None:
        raise InvalidConfiguration(
            "partition: by-key, but the task's examples have no key.",
            hint="Use femnist, or csv with the option key; or another kind of partition.",
        )
    found = np.unique(keys)
    if len(found) < spec.clients:
        raise InvalidConfiguration(
            f"partition: {len(found)} keys cannot be dealt to {spec.clients} clients.",
            hint=f"Set partition.clients to {len(found)} at most.",
        )
    shares = np.array_split(found, spec.clients)
    return _shuffled([np.flatnonzero(np.isin(keys, share)).astype(np.int64) for share in shares], random)


def _shuffled(parts: list[Indices], random: np.random.RandomState) -> list[Indices]:
    for part in parts:
        random.shuffle(part)
    return parts
