"""Fixed-point numbers as integers modulo 2^32 or 2^64: sums that depend on no order and never wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shared.lazy import LazyModule
from shared.problems import InvalidConfiguration, ModelDiverged
from shared.secure.faults import AttemptAbandoned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    RingVector = NDArray[np.unsignedinteger[Any]]
else:
    np = LazyModule("numpy")
    Vector = Any
    RingVector = Any

__all__ = [
    "LIMBS",
    "SMALLEST_SUM",
    "Bits",
    "Ring",
    "RingVector",
    "Vector",
    "clip",
    "join_limbs",
    "split_limbs",
]

Bits = Literal[32, 64]

SMALLEST_SUM = 3
"""The sum of two tells each of them the other's numbers."""
LIMBS = 4
_LIMB_BITS = 16
_FLOAT_BITS = 52
"""Integers up to 2^52 are exact as doubles, and so is the rounding to them."""
_LEAST_FRACTION = 8


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^bits that stand for numbers of magnitude ``limit`` at most.

    ``fraction`` bits stand after the point: as many as leave the sum of ``clients`` entries inside the ring.

    Raises:
        InvalidConfiguration: fewer than 8 bits would be left.

    >>> Ring(32, clients=10, limit=1.0).fraction
    27
    """

    bits: Bits
    clients: int
    limit: float

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf or not 0 < self.clients < 2**_LIMB_BITS:
            raise InvalidConfiguration(
                f"a secure sum of {self.clients} clients' numbers up to {self.limit:g} is not possible",
                hint="Give a finite clip above 0; a sum has 65,535 clients at most.",
            )
        if self.fraction < _LEAST_FRACTION:
            raise InvalidConfiguration(
                f"numbers up to {self.limit:g} of {self.clients} clients leave {self.fraction} bits after "
                f"the point in a ring of {self.bits} bits",
                hint="Lower secure.clip, or take secure.bits 64.",
            )

    @property
    def fraction(self) -> int:
        """Bits after the point."""
        largest = int(2 ** (self.bits - 1) - 1) // self.clients
        fraction: int = min(_FLOAT_BITS, largest.bit_length() - 1) - math.frexp(self.limit)[1] + 1
        while self._integer(self.limit, fraction) > min(largest, 2**_FLOAT_BITS):
            fraction -= 1
        return fraction

    @staticmethod
    def _integer(value: float, fraction: int) -> int:
        return round(math.ldexp(value, fraction))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian unsigned integers, on every machine."""
        return np.dtype(f"<u{self.bits // 8}")

    def zeros(self, length: int) -> RingVector:
        """The sum of nothing."""
        return np.zeros(length, dtype=self.dtype)

    def encode(self, values: Vector, out: RingVector) -> int:
        """Write ``values``, clipped to the limit, into ``out``, as long; returns how many were clipped.

        Raises:
            ModelDiverged: a value is not finite.
        """
        bounded, clipped = clip(values, self.limit)
        scaled = np.rint(np.ldexp(bounded, self.fraction))
        out[:] = scaled.astype(f"<i{self.bits // 8}").view(self.dtype)
        return clipped

    def decode(self, total: RingVector) -> Vector:
        """The numbers that a sum of encoded vectors stands for; exact up to 2^53, then rounded."""
        signed = total.astype(self.dtype, copy=False).view(f"<i{self.bits // 8}")
        numbers: Vector = np.ldexp(signed.astype(np.float64), -self.fraction)
        return numbers


def clip(values: Vector, limit: float) -> tuple[Vector, int]:
    """The values cut to ``limit`` in magnitude, and how many of them were.

    Raises:
        ModelDiverged: a value is not finite.
    """
    if not np.isfinite(values).all():
        raise ModelDiverged(
            "an update has values that are not finite, which a secure sum cannot hold",
            hint="Lower the learning rate, or clip local gradients.",
        )
    return np.clip(values, -limit, limit), int(np.count_nonzero(np.abs(values) > limit))


def split_limbs(value: int) -> list[int]:
    """An integer of 0 up to 2^64 - 1 as four entries of 16 bits, so that its sum fits a ring of 32 bits.

    >>> split_limbs(65536 + 7)
    [7, 1, 0, 0]
    """
    if not 0 <= value < 2 ** (LIMBS * _LIMB_BITS):
        raise InvalidConfiguration(f"{value} does not fit the 64 bits of a summed number")
    return [value >> at * _LIMB_BITS & 2**_LIMB_BITS - 1 for at in range(LIMBS)]


def join_limbs(totals: Sequence[int], clients: int) -> int:
    """The sum of ``clients`` integers from the sums of their limbs.

    Raises:
        AttemptAbandoned: an entry is larger than so many limbs can sum to: a mask is left in it.
    """
    if max(totals) > clients * (2**_LIMB_BITS - 1):
        raise AttemptAbandoned("the sum is not one of the clients' numbers: a mask was not removed")
    return sum(total << at * _LIMB_BITS for at, total in enumerate(totals))
