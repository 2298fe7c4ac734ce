"""Secrets of 32 bytes split so that any ``threshold`` of their holders can rebuild them (Shamir 1979)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    halves = [[(position, share[part]) for position, share in given] for part in _PARTS]
    return b"".join(Shamir.combine(half) for half in halves)


_PARTS = (slice(0, _HALF), slice(_HALF, SHARE_BYTES))
