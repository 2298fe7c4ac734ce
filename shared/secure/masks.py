"""Masks: vectors of the ring that look random to whoever lacks their key of 256 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from shared.secure.ring import RingVector

__all__ = ["Mask", "apply_masks"]

_CHUNK = 1 << 18
"""Bytes at a time: vector, keystream and zeros stay in the processor's cache."""


class Mask(NamedTuple):
    """The keystream of AES-256-CTR under ``key``, which is used for this one mask, added or subtracted."""

    key: bytes
    sign: Literal[1, -1]


def apply_masks(vector: RingVector, masks: Sequence[Mask]) -> None:
    """Add the masks to ``vector``, in place, modulo its ring."""
    streams = [(Cipher(AES(mask.key), CTR(bytes(16))).encryptor(), mask.sign) for mask in masks]
    zeros, buffer = memoryview(bytes(_CHUNK)), bytearray(_CHUNK + 16)
    drawn = np.frombuffer(buffer, dtype=vector.dtype, count=_CHUNK // vector.itemsize)
    for first in range(0, len(vector), len(drawn)):
        part = vector[first : first + len(drawn)]
        for stream, sign in streams:
            stream.update_into(zeros[: part.nbytes], buffer)
            operation = np.add if sign > 0 else np.subtract
            operation(part, drawn[: len(part)], out=part)
