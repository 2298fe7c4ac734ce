"""Secrets of 32 bytes split so that any ``threshold`` of their holders can rebuild them (Shamir 1979).

Splitting, which draws the randomness, is pycryptodome's. Rebuilding is Lagrange's interpolation at 0, here,
as the coordinator rebuilds as many keys as there are clients from shares at the same places: its
coefficients are computed once for all of them, and a key costs ``threshold`` products, not their square.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from Crypto.Protocol.SecretSharing import Shamir

from shared.secure.faults import AttemptAbandoned

__all__ = ["SHARE_BYTES", "combine", "split"]

_HALF = 16
"""pycryptodome shares elements of GF(2^128): a key of 32 bytes is two of them."""
SHARE_BYTES = 2 * _HALF


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """One share of 32 bytes for each holder; fewer than ``threshold`` of them tell nothing."""
    first, second = (Shamir.split(threshold, len(holders), half) for half in (secret[:_HALF], secret[_HALF:]))
    return {holder: a[1] + b[1] for holder, a, b in zip(holders, first, second, strict=True)}


def combine(shares: Mapping[int, bytes], threshold: int, holders: Sequence[int]) -> bytes:
    """The secret of ``split`` with the same threshold and holders; a wrong share gives a wrong secret.

    Raises:
        AttemptAbandoned: fewer than ``threshold`` holders gave their share.
    """
    at = {holder: position for position, holder in enumerate(holders, start=1)}
    given = [(at[holder], share) for holder, share in sorted(shares.items()) if holder in at][:threshold]
    if len(given) < threshold:
        raise AttemptAbandoned(f"{len(given)} shares of a key arrived, {threshold} are needed to rebuild it")
    coefficients = _coefficients(tuple(position for position, _ in given))
    return b"".join(
        _weighted_sum(coefficients, [int.from_bytes(share[part]) for _, share in given]).to_bytes(_HALF)
        for part in _PARTS
    )


_PARTS = (slice(0, _HALF), slice(_HALF, SHARE_BYTES))


# -------------------------------------------------------------------- GF(2^128), bits as coefficients of x^i

_BITS = 8 * _HALF
_LOW = (1 << _BITS) - 1


def _multiply(a: int, b: int) -> int:
    """Modulo x^128 + x^7 + x^2 + x + 1.

    >>> _multiply(1 << 127, 2) == 0b10000111
    True
    """
    product = 0
    while b:
        lowest = b & -b
        product ^= a << (lowest.bit_length() - 1)
        b ^= lowest
    while high := product >> _BITS:
        product = product & _LOW ^ high ^ high << 1 ^ high << 2 ^ high << 7
    return product


def _invert(a: int) -> int:
    """``a^(2^128 - 2)``, for ``a`` other than 0."""
    power = result = _multiply(a, a)
    for _ in range(_BITS - 2):
        power = _multiply(power, power)
        result = _multiply(result, power)
    return result


@lru_cache(maxsize=256)
def _coefficients(positions: tuple[int, ...]) -> tuple[int, ...]:
    """Of each share, its factor in the polynomial's value at 0: the product of ``x_j / (x_j - x_i)``."""
    found = []
    for here in positions:
        above, below = 1, 1
        for other in positions:
            if other != here:
                above, below = _multiply(above, other), _multiply(below, other ^ here)
        found.append(_multiply(above, _invert(below)))
    return tuple(found)


def _weighted_sum(coefficients: Sequence[int], shares: Sequence[int]) -> int:
    total = 0
    for coefficient, share in zip(coefficients, shares, strict=True):
        total ^= _multiply(coefficient, share)
    return total
