"""What a weighting is: its options, what it has to know, and the rule that makes weights of it.

A weighting is part of a run's configuration: a frozen model whose fields are its options. It remembers
nothing, and knows no algorithm: any algorithm takes any weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, Field

from shared.frozen import Frozen
from shared.lazy import LazyModule
from shared.problems import InvalidConfiguration
from shared.vocabulary import AnyMetric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
else:
    np = LazyModule("numpy")
    Vector = Any

__all__ = [
    "UNCHANGED",
    "Adam",
    "Adjustment",
    "AskedTarget",
    "Contribution",
    "Discrepancy",
    "LedgerEntry",
    "Memory",
    "Need",
    "Proxy",
    "Target",
    "Totals",
    "Vector",
    "Weighed",
    "Weighting",
    "WeightingRound",
    "distances_to_mean",
    "form",
    "layer_of",
    "make_entry",
    "make_rows",
    "make_shares",
    "multiply",
    "sizes_of",
    "softmax",
]

LONGEST_LABEL = 200
"""As the coordinator's database and messages have room for."""


def _check_shares(target: str | tuple[float, ...]) -> str | tuple[float, ...]:
    """As a client needs them to measure anything: of nothing, or of infinity, there are no shares."""
    if not isinstance(target, str) and (len(target) < 2 or not 0 < sum(target) < math.inf):
        raise ValueError("an explicit target needs at least two shares, not all zero, with a finite sum")
    return target


Target = Annotated[
    Literal["uniform"] | tuple[Annotated[float, Field(ge=0)], ...], AfterValidator(_check_shares)
]
AskedTarget = Annotated[
    Literal["uniform"] | tuple[Annotated[float, Field(ge=0)], ...] | Literal["global"],
    AfterValidator(_check_shares),
]
"""As a run names it; ``global`` is the distribution of all trainers' labels together."""


Memory = Mapping[str, Mapping[int, float]]
"""What a weighting keeps from round to round: finite numbers by name and client index."""


class Need(StrEnum):
    """What a weighting has to know beside the clients' sizes, from the least to the most."""

    NUMBER = "number"  # one number of each client, its discrepancy
    COUNTS = "counts"  # how many examples of each class each client has
    START_LOSS = "start_loss"  # the loss of the model that a client received, on its own examples
    END_LOSS = "end_loss"  # the loss of the model that it sent
    UPDATES = "updates"  # how the updates lie to each other: their inner products
    DATA = "data"  # labelled examples where aggregation happens


class Discrepancy(NamedTuple):
    """The number that clients are asked for, once."""

    metric: AnyMetric
    target: AskedTarget

    def resolve(self, totals: Sequence[int] | None) -> Target:
        """The target as shares, or uniform; ``totals`` are all trainers' label counts, for ``global``.

        Raises:
            InvalidConfiguration: the target is global, and nobody has told the totals.
        """
        if not isinstance(self.target, str) or self.target == "uniform":
            return self.target
        if totals is None or not sum(totals):
            raise InvalidConfiguration(
                "the global target is not known: the label counts have not been summed"
            )
        return tuple(count / sum(totals) for count in totals)


@dataclass(frozen=True)
class Contribution:
    """What weighting knows of a client; None: not given, or not asked for.

    ``discrepancy`` is the raw d_k (may be ``inf``), ``counts`` its examples of each class; ``start_loss`` and
    ``end_loss`` are mean losses over its training examples, of the model that it received and of its own.
    """

    index: int
    examples: int
    discrepancy: float | None = None
    counts: tuple[float, ...] | None = None
    start_loss: float | None = None
    end_loss: float | None = None


class Totals(NamedTuple):
    """What all trainers enrolled sum to: their examples, and their discrepancies that are finite.

    ``counts``: their examples of each class, where the run's target is global.
    """

    examples: int
    discrepancy: float
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """Why one client got its weight: a row of the round's ledger.

    ``size_share`` is n_k and ``discrepancy_share`` the d_k as they enter ``score`` (None for weightings
    without a score); ``weight`` is p_k; ``size_weight`` is what plain sizes would have
    given, ``uncapped_weight`` what the weighting gave before the run's cap (None: no cap).
    ``included`` is False for a client that could not take part in the weighting at all;
    ``reason`` is a sentence whenever the weight is 0. ``details`` are further numbers that made the score,
    by name.

    What the update itself is like, whatever it weighs: ``norm`` and ``largest_entry`` of its displacement,
    ``cosine`` of that and the mean direction of the others, and its ``share`` in the model under the run's
    aggregation rule (None: its weight, or another share in each coordinate).
    """

    index: int
    examples: int
    included: bool
    reason: str | None
    size_share: float | None
    discrepancy: float | None
    discrepancy_share: float | None
    score: float | None
    weight: float
    size_weight: float
    uncapped_weight: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    norm: float | None = None
    largest_entry: float | None = None
    cosine: float | None = None
    share: float | None = None


class Proxy(Protocol):
    """Labelled examples where aggregation happens, in ``batches``."""

    @property
    def batches(self) -> int: ...

    def slopes(self, coefficients: Mapping[int, float], batch: int) -> dict[int, float]:
        """The derivatives of the batch's loss of the model ``sum_k c_k y_k`` by each c_k."""
        ...


@dataclass(frozen=True)
class WeightingRound:
    """What a weighting may see of a round.

    ``taken`` are the clients whose updates arrived and that can take part, at least one, by index;
    ``everyone`` are all trainers enrolled. ``number`` counts from 1, of ``rounds`` in all;
    ``step_length`` is the clients' learning rate, over 1 - momentum. ``memory`` is what the weighting
    returned last. ``layers`` and ``proxy`` are there for weightings that need updates, or data: of each layer
    the inner products of the displacements u_k = y_k - x of those taken, and of x, which comes last; shape
    (K + 1, K + 1). ``parameters`` is how many numbers such a vector has. ``learned`` is what
    :meth:`Weighting.learn` found elsewhere, in place of ``proxy``; empty: nothing was learned.
    """

    taken: Sequence[Contribution]
    everyone: Sequence[Contribution] = ()
    number: int = 1
    rounds: int = 1
    step_length: float = 0.01
    memory: Memory = field(default_factory=dict)
    layers: Mapping[str, Vector] = field(default_factory=dict)
    parameters: int = 0
    proxy: Proxy | None = None
    learned: Sequence[float] | None = None

    @property
    def indices(self) -> list[int]:
        return [row.index for row in self.taken]

    @property
    def products(self) -> Vector:
        """The inner products over all layers; shape (K + 1, K + 1)."""
        if not self.layers:
            raise InvalidConfiguration("this weighting needs the updates, which are not at hand here.")
        products: Vector = np.sum(list(self.layers.values()), axis=0)
        return products

    def recall(self, name: str, otherwise: float | Vector) -> Vector:
        """What is remembered under ``name`` of those taken; ``otherwise`` of the others."""
        known = self.memory.get(name, {})
        default = np.broadcast_to(np.asarray(otherwise, dtype=np.float64), len(self.taken)).tolist()
        return np.array([known.get(row.index, d) for row, d in zip(self.taken, default, strict=True)])

    def remember(self, name: str, values: Vector) -> dict[str, dict[int, float]]:
        """What to keep under ``name``: ``values`` of those taken, what is there already of the others."""
        kept = dict(self.memory.get(name, {}))
        return {name: kept | dict(zip(self.indices, values.tolist(), strict=True))}

    @property
    def size_shares(self) -> Vector:
        """n_k of those taken; they sum to one."""
        return make_shares(sizes_of(self.taken))


@dataclass(frozen=True)
class Adjustment:
    """What is done to the model that the algorithm made of the weighted updates, for it to be the next one.

    Its displacement from the round's start is taken ``step`` times, then all parameters are multiplied by
    ``shrink``, and those of a layer by its factor in ``layers``.
    """

    step: float = 1.0
    shrink: float = 1.0
    layers: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return self.step != 1 or self.shrink != 1 or any(factor != 1 for factor in self.layers.values())


UNCHANGED = Adjustment()


@dataclass(frozen=True)
class Weighed:
    """What came of a round: one row for each client taken, in the same order; and what to keep."""

    rows: Sequence[LedgerEntry]
    memory: Memory = field(default_factory=dict)
    adjustment: Adjustment = UNCHANGED


class Weighting(Frozen):
    """Base of all weightings; a subclass has a ``kind`` of its own, which is the name of its file."""

    citation: ClassVar[str]
    asks: ClassVar[frozenset[Need]] = frozenset()
    goes_by_rounds: ClassVar[bool] = False  # whether weights depend on how many rounds the run has in all
    remembers: ClassVar[bool] = False  # whether weights depend on those of earlier rounds

    kind: str

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be known beside the sizes."""
        return self.asks

    @property
    def discrepancy(self) -> Discrepancy | None:
        """What clients are asked for; None: nothing (least disclosure)."""
        return None

    @property
    def needs_discrepancy(self) -> bool:
        return self.discrepancy is not None

    @property
    def proxy_size(self) -> tuple[int, int]:
        """How many labelled examples it learns on, where it needs data, and how many at once."""
        return 200, 128

    @property
    def label(self) -> str:
        """Its kind, and the options that are not as by default; a long one is cut and ends in its digest.

        >>> from shared.weightings.disco import DiscoWeighting
        >>> DiscoWeighting(a=0.2).label
        'disco a=0.2'
        """
        usual = {
            name: field.get_default(call_default_factory=True)
            for name, field in type(self).model_fields.items()
        }
        chosen = {name: value for name, value in self if name != "kind" and value != usual[name]}
        label = " ".join([self.kind, *(f"{name}={value}" for name, value in chosen.items())])
        if len(label) <= LONGEST_LABEL:
            return label
        digest = hashlib.sha256(label.encode()).hexdigest()[:12]
        return f"{label[: LONGEST_LABEL - 20]}... ({digest})"

    def find_dependence(self) -> str | None:
        """Why a client cannot compute its score alone, from two sums over all clients; None if it can."""
        return f"the weighting {self.kind} has to know more of single clients than sums over all of them"

    @property
    def largest_score(self) -> float:
        """No score alone is above it."""
        return 1.0

    def score_alone(self, own: Contribution, totals: Totals) -> float:
        """What a client's weight is in proportion to, as it computes it itself; 0 or more."""
        raise NotImplementedError

    def find_refusal(self, row: Contribution) -> str | None:
        """Why what a client tells, all of which is there, cannot be taken; None if it can."""
        return None

    def begin(self, round: WeightingRound) -> Vector:
        """The numbers that :meth:`learn` begins with, of a weighting that needs data."""
        raise NotImplementedError

    def learn(self, begin: Vector, indices: Sequence[int], proxy: Proxy) -> Vector:
        """As many numbers, learned on examples, of which :meth:`weigh` makes the weights of these clients."""
        raise NotImplementedError

    @property
    def learns(self) -> bool:
        """Whether what it does with data can be done elsewhere, by :meth:`learn`."""
        return type(self).learn is not Weighting.learn

    def weigh(self, round: WeightingRound) -> Weighed:
        """The weights of those taken, 0 or more; they sum to one, or all are 0 if nobody can have one."""
        raise NotImplementedError


def layer_of(name: str) -> str:
    """The module that a parameter is named after, or the parameter itself.

    >>> layer_of("features.0.weight"), layer_of("scale")
    ('features.0', 'scale')
    """
    return name.rpartition(".")[0] or name


def make_shares(values: Vector) -> Vector:
    """``values / sum(values)``, exactly the same bits in any order (``fsum`` rounds once)."""
    largest = float(values.max(initial=0.0))
    if largest == 0:
        return np.zeros_like(values)
    # A power of two changes no digit and keeps the sum of huge numbers finite.
    scaled = np.ldexp(values, -math.frexp(largest)[1])
    return scaled / math.fsum(scaled)


def sizes_of(rows: Sequence[Contribution]) -> Vector:
    """The numbers of examples."""
    return np.array([row.examples for row in rows], dtype=np.float64)


def multiply(matrix: Vector, vector: Vector) -> Vector:
    """Their product, in an order of its own: a library's may depend on how many threads it has."""
    product: Vector = (matrix * vector).sum(axis=1)
    return product


def form(matrix: Vector, vector: Vector) -> float:
    """``vector' matrix vector``, not below 0."""
    return max(0.0, float((multiply(matrix, vector) * vector).sum()))


def distances_to_mean(products: Vector, weights: Vector) -> Vector:
    """``|u_k - sum_j p_j u_j|`` of the inner products (K, K) of the u_k; ``weights`` p sum to one.

    >>> distances_to_mean(np.eye(2), np.array([0.5, 0.5])).round(6).tolist()
    [0.707107, 0.707107]
    """
    squares = np.diag(products) - 2 * multiply(products, weights) + form(products, weights)
    return np.sqrt(np.maximum(squares, 0.0))


class Adam:
    """Kingma and Ba, ICLR 2015, with the betas of FedLAW's code; state of one minimisation."""

    def __init__(self, size: int) -> None:
        self._first, self._second, self._steps = np.zeros(size), np.zeros(size), 0

    def step(self, values: Vector, slopes: Vector, rate: float) -> Vector:
        """The values after one step against the slopes."""
        self._steps += 1
        self._first = 0.5 * self._first + 0.5 * slopes
        self._second = 0.999 * self._second + 0.001 * slopes**2
        scale = np.sqrt(self._second / (1 - 0.999**self._steps)) + 1e-8
        return values - rate * self._first / (1 - 0.5**self._steps) / scale


def softmax(logits: Vector) -> Vector:
    """``exp(l_k) / sum``, for logits of any size."""
    return make_shares(np.exp(logits - logits.max()))


def make_rows(
    round: WeightingRound,
    weights: Vector | Sequence[float],
    scores: Vector | Sequence[float] | None = None,
    **details: Vector | Sequence[float],
) -> list[LedgerEntry]:
    """The rows of those taken; ``details`` are columns, of which a row has what is finite.

    Raises InvalidConfiguration for a column with another number of values than there are clients.
    """
    for name, column in {"weights": weights, "scores": scores, **details}.items():
        if column is not None and len(column) != len(round.taken):
            raise InvalidConfiguration(
                f"the weighting gives {len(column)} {name} for {len(round.taken)} clients",
                hint="Give one for each of round.taken, in its order.",
            )
    columns = zip(round.taken, round.size_shares.tolist(), map(float, weights), strict=True)
    return [
        replace(
            make_entry(row, n, p),
            score=None if scores is None else float(scores[at]),
            details={name: float(v[at]) for name, v in details.items() if math.isfinite(v[at])},
        )
        for at, (row, n, p) in enumerate(columns)
    ]


def make_entry(row: Contribution, size_share: float, weight: float) -> LedgerEntry:
    """The ledger's row of a client that is taken, without discrepancy share, score and reason."""
    return LedgerEntry(
        row.index, row.examples, True, None, size_share, row.discrepancy, None, None, weight, size_share
    )
