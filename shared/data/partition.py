"""Deals one data set to many clients, for demos and experiments, by ``shared.data.strategies``.

Everything depends on the data set's own order, the seed and nothing else. All indices are positions in
that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.config import Partition
from shared.data import strategies
from shared.data.strategies import Indices, imbalance
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration
from shared.seeds import derive

if TYPE_CHECKING:
    from shared.data import Examples
    from shared.tasks.base import Task

__all__ = [
    "Indices",
    "Share",
    "common_test",
    "deal",
    "deal_examples",
    "imbalance",
    "partition",
    "table",
    "thinned",
    "validation",
    "validation_examples",
]


@dataclass(frozen=True)
class Share:
    """One client's examples, in a random order: to train on, and (``held_out``) to test its model on."""

    train: Indices
    test: Indices


def partition(
    spec: Partition,
    targets: NDArray[np.integer],
    classes: int,
    seed: int,
    *,
    keys: NDArray[np.integer] | None = None,
) -> list[Indices]:
    """Positions of each client's training examples: disjoint, in a random order, one array a client.

    See :func:`deal`.
    """
    return [share.train for share in deal(spec, targets, classes, seed, keys=keys)]


def deal(
    spec: Partition,
    targets: NDArray[np.integer],
    classes: int,
    seed: int,
    *,
    keys: NDArray[np.integer] | None = None,
) -> list[Share]:
    """Each client's training examples and its own test: the last ``spec.held_out`` of one draw.

    ``targets`` holds the class indices and ``keys`` the examples' keys (``by-key`` only), both of shape
    (N,); ``seed`` is used where ``spec.seed`` is None. A client keeps at least one example to train on.
    What :func:`validation` names is dealt to nobody.

    Raises:
        InvalidConfiguration: the data set cannot be dealt like that; says why.
    """
    targets = np.asarray(targets)
    if spec.validation:
        dealt = _not_validation(spec, targets, classes, seed)
        rest = spec.model_copy(update={"validation": 0})
        shares = deal(rest, targets[dealt], classes, seed, keys=None if keys is None else keys[dealt])
        return [Share(train=dealt[share.train], test=dealt[share.test]) for share in shares]
    members = _members(targets, classes)
    random = _generator(seed if spec.seed is None else spec.seed)
    if is_own(spec.kind):
        parts = strategies.own(spec, targets, classes, random)
    elif spec.kind == "iid":
        parts = strategies.iid(spec, len(targets), random)
    elif spec.kind == "niid1":
        parts = strategies.niid1(spec, members, random)
    elif spec.kind == "niid2":
        parts = strategies.niid2(spec, members, random)
    elif spec.kind == "neighbours":
        parts = strategies.neighbours(spec, members, random)
    else:
        parts = strategies.by_key(spec, None if keys is None else np.asarray(keys, dtype=np.int64), random)
    return [_share(part, spec.held_out) for part in parts]


def validation(spec: Partition, targets: NDArray[np.integer], classes: int, seed: int) -> Indices:
    """Positions, ascending, of the ``spec.validation`` training examples that no client is dealt.

    Drawn at random, of every class as many as its share of the data set asks for.

    Raises:
        InvalidConfiguration: nothing would be left to deal.
    """
    targets = np.asarray(targets)
    if spec.validation >= len(targets):
        raise InvalidConfiguration(
            f"partition: validation {spec.validation} leaves nothing of {len(targets)} examples to deal.",
            hint="Lower partition.validation.",
        )
    own = seed if spec.seed is None else spec.seed
    random = np.random.RandomState(derive(own, "validation") % 2**32)
    place = np.empty(len(targets))  # of each example in a random order of its class, from 0 to 1
    for members in _members(targets, classes):
        place[random.permutation(members)] = (np.arange(len(members)) + 0.5) / max(1, len(members))
    return np.sort(np.argsort(place, kind="stable")[: spec.validation]).astype(np.int64)


def _not_validation(spec: Partition, targets: NDArray[np.integer], classes: int, seed: int) -> Indices:
    return np.setdiff1d(np.arange(len(targets)), validation(spec, targets, classes, seed))


def thinned(spec: Partition, targets: NDArray[np.integer], classes: int) -> Indices:
    """Positions of the common test set that count: the first ``imbalance(counts, test_rho)`` of each class.

    In the data set's order; all of them for a ``test_rho`` of 1 (reference 4.3, scenario 2).
    """
    targets = np.asarray(targets)
    members = _members(targets, classes)
    keep = imbalance([len(indices) for indices in members], spec.test_rho)
    return np.sort(np.concatenate([part[:kept] for part, kept in zip(members, keep, strict=True)]))


def deal_examples(spec: Partition, task: Task, examples: Examples, seed: int) -> list[Share]:
    """:func:`deal` for a task's training set: its classes (or bins) and its keys."""
    keys = None if examples.keys is None else examples.keys.cpu().numpy()
    targets = task.categories(examples.targets).cpu().numpy()
    return deal(spec, targets, len(task.classes), seed, keys=keys)


def validation_examples(spec: Partition, task: Task, examples: Examples, seed: int) -> Examples:
    """:func:`validation` of a task's training set."""
    targets = task.categories(examples.targets).cpu().numpy()
    return examples.subset(validation(spec, targets, len(task.classes), seed))


def common_test(spec: Partition | None, task: Task, examples: Examples) -> Examples:
    """What of a task's test set counts in a run: all of it, or what :func:`thinned` leaves."""
    if spec is None or spec.test_rho == 1:
        return examples
    targets = task.categories(examples.targets).cpu().numpy()
    return examples.subset(thinned(spec, targets, len(task.classes)))


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


def _members(targets: NDArray[np.integer], classes: int) -> list[Indices]:
    """The positions of each class's examples."""
    if targets.size and not (targets.min() >= 0 and targets.max() < classes):
        raise InvalidConfiguration(
            f"partition: targets go from {targets.min()} to {targets.max()}, but there are {classes} classes."
        )
    return [np.flatnonzero(targets == label).astype(np.int64) for label in range(classes)]


def _share(part: Indices, held_out: float) -> Share:
    # rounded first: 0.1 * 30 is a little more than 3
    test = min(math.floor(round(held_out * len(part), 6)), max(0, len(part) - 1))
    return Share(train=part[: len(part) - test], test=part[len(part) - test :])


def _generator(seed: int) -> np.random.RandomState:
    """The legacy generator takes 32 bits; larger seeds are hashed into them."""
    return np.random.RandomState(seed if 0 <= seed < 2**32 else derive(seed, "partition") % 2**32)
