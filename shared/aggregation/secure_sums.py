"""Secure Disco: what a client adds to a round's sum, and what the sum tells the server half.

Disco's weight is a ratio of what each client can compute alone once N, all examples, and D, all
discrepancies, are known: ``s_k = max(n_k/N - a d_k/D + b, 0)``. The new model is
``x + sum_k s_k (y_k - x) / sum_k s_k``, over the clients whose updates arrived, whatever the algorithm does
with it then. Nothing here depends on an order of the clients: the sum of integers is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared import wire
from shared.algorithms.base import ServerRound, Sum, UpdateInfo
from shared.problems import InvalidConfiguration
from shared.schemas import TensorKind, TensorSpec
from shared.secure.ring import LIMBS, Ring, RingVector, Vector, clip, join_limbs, split_limbs
from shared.weightings.base import Totals

if TYPE_CHECKING:
    from torch import Tensor

    from shared.algorithms.base import Algorithm, Tensors
    from shared.config import LocalTraining, RunConfig, SecureSums
    from shared.weightings import Contribution

__all__ = [
    "Plan",
    "RoundSums",
    "SecureRound",
    "add_up_totals",
    "decode_totals",
    "encode_totals",
    "read_vector",
    "score_of",
    "sum_layout",
    "totals_length",
    "write_vector",
]

_FRACTION = 40
"""Bits after the point of a score or a discrepancy: 24 are left before it, of 64."""
_NUMBERS = ("score", "steps", "clipped")
_TOTALS = ("examples", "discrepancy")
_BY_CLASS = ("count", "share")
_BUFFERS = Sum("buffers", "weight")
_FILE_TENSOR = "sum"


def totals_length(config: RunConfig, classes: int) -> int:
    """Entries of a vector of the sum that ends enrolment, of a run with so many classes."""
    by_class = len(_BY_CLASS) * classes if _has_global_target(config) else 0
    return (len(_TOTALS) + by_class) * LIMBS


def encode_totals(config: RunConfig, own: Contribution) -> RingVector:
    """What a client adds to the sums over all trainers: its examples and its discrepancy.

    With a global target nobody has a discrepancy yet. There it is the entropy of its labels, and of each
    class the examples and the share of its own: the sum of all discrepancies follows from their sums.
    """
    numbers = _own_numbers(config, own)
    vector = _secure(config).make_ring(config.weighting, 1).zeros(len(numbers) * LIMBS)
    vector[:] = [limb for number in numbers for limb in split_limbs(number)]
    return vector


def decode_totals(config: RunConfig, total: RingVector, arrived: int) -> Totals:
    """N and D of ``arrived`` clients. Raises AttemptAbandoned if the total is no sum of such vectors."""
    return _find_totals(config, _join_numbers(total, len(total) // LIMBS, arrived))


def _has_global_target(config: RunConfig) -> bool:
    asked = config.weighting.discrepancy
    return asked is not None and asked.target == "global"


def _own_numbers(config: RunConfig, own: Contribution) -> list[int]:
    if not _has_global_target(config):
        d = own.discrepancy
        return [own.examples, _to_steps(d) if d is not None and math.isfinite(d) else 0]
    if own.counts is None or not own.examples:
        raise InvalidConfiguration("a client without labels has no part in the global target")
    counts = [int(count) for count in own.counts]
    shares = [count / own.examples for count in counts]
    entropy = math.fsum(-share * math.log(share) for share in shares if share)
    return [own.examples, _to_steps(entropy), *counts, *(_to_steps(share) for share in shares)]


def _find_totals(config: RunConfig, sums: Sequence[int]) -> Totals:
    """The totals of what :func:`_own_numbers` gives, added up.

    ``sum_k KL(p_k || t) = - sum_k H(p_k) - sum_c (sum_k p_kc) ln t_c``; t is the distribution of the sum.
    """
    examples, second, *by_class = sums
    if not _has_global_target(config):
        return Totals(examples, math.ldexp(second, -_FRACTION))
    counts, shares = by_class[: len(by_class) // 2], by_class[len(by_class) // 2 :]
    whole = sum(counts)
    crossed = math.fsum(
        -math.ldexp(share, -_FRACTION) * math.log(count / whole)
        for count, share in zip(counts, shares, strict=True)
        if count
    )
    return Totals(examples, max(0.0, crossed - math.ldexp(second, -_FRACTION)), tuple(counts))


def _secure(config: RunConfig) -> SecureSums:
    if config.secure is None:
        raise InvalidConfiguration("the run asks for no secure sums")
    return config.secure


def _to_steps(value: float) -> int:
    return round(math.ldexp(value, _FRACTION))


def _join_numbers(total: RingVector, count: int, arrived: int) -> list[int]:
    """The sums of the numbers that a vector begins with."""
    limbs = total[: count * LIMBS].astype(np.uint64).tolist()
    return [join_limbs(limbs[at * LIMBS : (at + 1) * LIMBS], arrived) for at in range(count)]


def sum_layout(config: RunConfig, length: int) -> dict[str, TensorSpec]:
    """The file of a vector of ``length`` entries, as clients upload it."""
    spec = TensorSpec(name=_FILE_TENSOR, shape=(length,), dtype=f"I{_secure(config).bits}")
    return dict(wire.model_layout([spec]))


def write_vector(path: Path, vector: RingVector) -> wire.Written:
    """The file of a (masked) vector; it can be made again, so it is not forced to the disk."""
    import torch

    tensor = torch.from_numpy(vector.view(f"<i{vector.itemsize}"))
    return wire.write(path, {wire.MODEL: {_FILE_TENSOR: tensor}}, durable=False)


def read_vector(path: Path) -> RingVector:
    """What :func:`write_vector` wrote; the file must have passed ``shared.wire.validation``."""
    with wire.opened(path) as file:
        signed = file.tensor(wire.MODEL, _FILE_TENSOR).numpy()
        return signed.view(f"<u{signed.itemsize}").copy()


def add_up_totals(config: RunConfig, everyone: Sequence[Contribution]) -> Totals:
    """N and D of all trainers enrolled, as the one-time sum gives them: D in steps of 2^-40."""
    numbers = [_own_numbers(config, row) for row in everyone if row.examples]
    return _find_totals(config, [sum(column) for column in zip(*numbers, strict=True)])


def score_of(config: RunConfig, own: Contribution, totals: Totals) -> float:
    """s_k, cut to steps of 2^-40, so that the scores summed are those multiplied with.

    Who came after the totals were made may be larger than they allow for; it gets the largest score.
    """
    if not own.examples:
        return 0.0
    score = min(config.weighting.score_alone(own, totals), config.weighting.largest_score)
    return math.ldexp(math.floor(math.ldexp(score, _FRACTION)), -_FRACTION)


@dataclass(frozen=True)
class RoundSums:
    """A round's sums: of scores, of ``s_k |a_k|``, of clipped entries; and by group and tensor.

    ``groups`` by weight are ``sum_k s_k value_k`` (for models of the displacements, over ``|a_k|``), by
    clients ``sum_k value_k``.
    """

    clients: int
    score: float
    steps: float
    clipped: int
    groups: Mapping[Sum, Mapping[str, Vector]]


@dataclass(frozen=True)
class Plan:
    """Which numbers stand where in the vectors of a round of ``clients``."""

    config: RunConfig
    algorithm: Algorithm[Any]
    manifest: Sequence[TensorSpec]
    clients: int

    @property
    def ring(self) -> Ring:
        return _secure(self.config).make_ring(self.config.weighting, self.clients)

    def _specs(self, kind: TensorKind) -> list[TensorSpec]:
        return [spec for spec in self.manifest if spec.kind is kind]

    def _parts(self) -> Iterator[tuple[Sum, TensorSpec, slice]]:
        """Every summed tensor and its place, after the numbers."""
        wanted = [
            (asked, spec) for asked in self.algorithm.sums for spec in self._specs(TensorKind.PARAMETER)
        ]
        if self.config.buffers == "average":
            wanted += [(_BUFFERS, spec) for spec in self._specs(TensorKind.BUFFER)]
        first = len(_NUMBERS) * LIMBS
        for asked, spec in wanted:
            last = first + math.prod(spec.shape)
            yield asked, spec, slice(first, last)
            first = last

    @property
    def length(self) -> int:
        """Entries of a vector."""
        parts = [place.stop for _, _, place in self._parts()]
        return max(parts, default=len(_NUMBERS) * LIMBS)

    def encode(self, model: Path, update: Path, score: float, steps: int) -> RingVector:
        """What a client adds to the round: its update, relative to ``model``, its score and clipped entries.

        Raises:
            ModelDiverged: the update is not finite.
        """
        local = self.config.local
        ring, norm = self.ring, self.algorithm.norm(steps, local.learning_rate, local.momentum)
        vector, clipped = ring.zeros(self.length), 0
        limit = _secure(self.config).clip
        with wire.opened(model) as x, wire.opened(update) as y:
            for asked, spec, place in self._parts():
                values = _displacement(x, y, asked.group, spec)
                bounded, cut = clip(values, limit)
                ring.encode(bounded * _factor(asked, score, norm), vector[place])
                clipped += cut
        numbers = (score, score * norm, math.ldexp(clipped, -_FRACTION))
        limbs = [limb for number in numbers for limb in split_limbs(_to_steps(number))]
        vector[: len(limbs)] = limbs
        return vector

    def decode(self, total: RingVector, arrived: int) -> RoundSums:
        """The sums of ``arrived`` clients' vectors.

        Raises:
            AttemptAbandoned: the total is no sum of such vectors.
        """
        score, steps, clipped = _join_numbers(total, len(_NUMBERS), arrived)
        groups: dict[Sum, dict[str, Vector]] = {}
        ring = self.ring
        for asked, spec, place in self._parts():
            groups.setdefault(asked, {})[spec.name] = ring.decode(total[place]).reshape(spec.shape)
        return RoundSums(
            arrived, math.ldexp(score, -_FRACTION), math.ldexp(steps, -_FRACTION), clipped, groups
        )


def _displacement(x: wire.Opened, y: wire.Opened, group: str, spec: TensorSpec) -> Vector:
    """y_k - x of the model and its buffers; any other group as it is; in float64, flat."""
    if group not in (wire.MODEL, _BUFFERS.group):
        return _flat(y.tensor(group, spec.name))
    return _flat(y.tensor(wire.MODEL, spec.name)) - _flat(x.tensor(wire.MODEL, spec.name))


def _flat(tensor: Tensor) -> Vector:
    values: Vector = tensor.detach().reshape(-1).double().numpy()
    return values


def _factor(asked: Sum, score: float, norm: float) -> float:
    if asked.by == "clients":
        return 1.0
    if asked.group != wire.MODEL:
        return score
    return score / norm if norm > 0 else 0.0


class _NoUpdates:
    """The updates of a secure round: how many there are, and nothing of one of them."""

    def __init__(self, clients: int) -> None:
        self.infos: Sequence[UpdateInfo] = [UpdateInfo(at, 0, 0.0, 0) for at in range(clients)]

    def weighted_sum(self, coefficients: Mapping[int, float], group: str = wire.MODEL) -> Tensors:
        raise InvalidConfiguration(
            f"the algorithm asks for a sum of {group!r} with weights of its own: secure sums give none",
            hint="Ask for mean, mean_over_clients or normalised_mean, and declare them in sums.",
        )


@dataclass(frozen=True)
class SecureRound(ServerRound):
    """A round as its server half sees it where only sums are known; ``weights`` are nobody's."""

    sums: RoundSums

    @classmethod
    def of(
        cls,
        sums: RoundSums,
        model: Mapping[str, Tensor],
        state: Mapping[str, Mapping[str, Tensor]],
        clients: int,
        local: LocalTraining,
        number: int,
        seed: int,
    ) -> SecureRound:
        return cls(
            model=model,
            state=state,
            weights={},
            updates=_NoUpdates(sums.clients),
            clients=clients,
            learning_rate=local.learning_rate,
            momentum=local.momentum,
            sums=sums,
            round=number,
            seed=seed,
        )

    def mean(self, group: str = wire.MODEL, scale: float = 1.0) -> Tensors:
        moved = self._divided(Sum(group, "weight"), self.sums.score / scale)
        if group == wire.MODEL:
            moved = {name: scale * self.model[name].double() + value for name, value in moved.items()}
        return self._narrowed(moved)

    def mean_over_clients(self, group: str) -> Tensors:
        return self._narrowed(self._divided(Sum(group, "clients"), self.clients))

    def mean_displacement(self) -> Tensors:
        return self.mean_over_clients(wire.MODEL)

    def normalised_mean(self, algorithm: Algorithm[Any]) -> Tensors:
        effective = self.sums.steps / self.sums.score
        moved = self._divided(Sum(wire.MODEL, "weight"), self.sums.score / effective if effective else 1.0)
        return self._narrowed({name: self.model[name].double() + value for name, value in moved.items()})

    def mean_buffers(self, start: Mapping[str, Tensor]) -> Tensors:
        """The averaged buffers; none where the run keeps them local."""
        if _BUFFERS not in self.sums.groups:
            return {}
        moved = self._divided(_BUFFERS, self.sums.score)
        return {name: start[name].double() + value for name, value in moved.items()}

    def _divided(self, asked: Sum, divisor: float) -> Tensors:
        import torch

        if asked not in self.sums.groups:
            raise InvalidConfiguration(
                f"the algorithm asks for the sum of {asked.group!r} by {asked.by}, which it does not declare",
                hint="Every sum that combine asks for stands in the algorithm's sums.",
            )
        found = self.sums.groups[asked]
        return {name: torch.from_numpy(np.asarray(value / divisor)) for name, value in found.items()}

    def _narrowed(self, tensors: Tensors) -> Tensors:
        """In the precision that sums of updates in clear have: float32, or wider where the model's is."""
        import torch

        return {
            name: value.to(torch.promote_types(self.model[name].dtype, torch.float32))
            for name, value in tensors.items()
        }
