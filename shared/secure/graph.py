"""Who masks with whom: everybody up to 64 clients, then a sparse graph (Bell et al., CCS 2020, section 3)."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.secure.encoding import encode

__all__ = ["COMPLETE_UP_TO", "Graph", "degree_for", "draw_graph"]

COMPLETE_UP_TO = 64
_FAILING = 2.0**-40
_ADVERSE = 0.2
"""The share of clients that may collude with the coordinator, and the share that may drop out.

With a coordinator that shows different survivors to different clients so many may collude only where the
run's threshold is above 0.6 (``Client.disclose``).
"""


@dataclass(frozen=True)
class Graph:
    """The members in an order that nobody chose, each joined to those at most ``reach`` places away.

    ``threshold`` of a member's holders (its neighbours and itself) rebuild its keys.
    """

    order: tuple[int, ...]
    reach: int
    threshold: int

    def neighbours(self, member: int) -> tuple[int, ...]:
        """The others whom the member shares masks with, ascending."""
        size, at = len(self.order), self.order.index(member)
        if 2 * self.reach + 1 >= size:
            return tuple(sorted(other for other in self.order if other != member))
        steps = (*range(-self.reach, 0), *range(1, self.reach + 1))
        return tuple(sorted(self.order[(at + step) % size] for step in steps))

    def holders(self, member: int) -> tuple[int, ...]:
        """Those who hold a share of the member's keys, ascending; itself among them."""
        return tuple(sorted((member, *self.neighbours(member))))


def draw_graph(members: Sequence[int], threshold: int, seed: bytes) -> Graph:
    """The graph that follows from ``seed``, which all members' signed keys enter: no one of them chooses it.

    ``threshold`` is the run's, out of all members; in a sparse graph just above half of the holders do.
    """
    order = tuple(sorted(members, key=lambda member: hashlib.sha256(encode("graph", seed, member)).digest()))
    degree = degree_for(len(members))
    if degree == len(members) - 1:
        return Graph(order, len(members), threshold)
    return Graph(order, degree // 2, degree // 2 + 1)


@functools.cache
def degree_for(members: int) -> int:
    """How many neighbours each member has.

    Above 64 the smallest even number for which, with a fifth of the members colluding and another fifth
    dropping out, each of these has a probability below 2^-40: some member's neighbourhood has enough
    colluders to rebuild its keys, or too few left to do it; the honest members left are cut off from each
    other (theorem 3.10, hypergeometric tails). That all are asked for the same keys is not the graph's to
    hold but the signatures', by the run's threshold.
    """
    if members <= COMPLETE_UP_TO:
        return members - 1
    adverse = math.floor(_ADVERSE * members)
    for degree in range(2, members - 1, 2):
        threshold = degree // 2 + 1
        colluding = members * _tail(members - 1, adverse, degree, threshold)
        missing = members * _tail(members - 1, adverse, degree, degree - threshold + 1)
        cut = members * (2 * _ADVERSE) ** degree
        if max(colluding, missing, cut) < _FAILING:
            return degree
    return members - 1


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """The probability of ``least`` or more marked ones among those drawn without putting back."""
    ways = sum(
        math.comb(marked, hit) * math.comb(population - marked, drawn - hit)
        for hit in range(least, min(marked, drawn) + 1)
    )
    return ways / math.comb(population, drawn)
