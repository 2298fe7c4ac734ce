"""Fingerprints: of certificates SHA-256 of the DER form, as ``openssl x509 -fingerprint -sha256`` has it; of
identity keys SHA-256 of their 32 bytes."""

from __future__ import annotations

import hashlib
import re

__all__ = [
    "SELF_SIGNED_FILE",
    "fingerprint_of",
    "format_fingerprint",
    "identity_fingerprint",
    "parse_fingerprint",
]

SELF_SIGNED_FILE = "self-signed.pem"
"""In the data folder of a coordinator that made its own certificate: private key and certificate in one file,
so that they cannot come apart."""


def fingerprint_of(der: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(der).hexdigest()


def identity_fingerprint(identity: str | None) -> str | None:
    """Of a public key in hexadecimal digits; None for none."""
    return None if identity is None else fingerprint_of(bytes.fromhex(identity))


def format_fingerprint(fingerprint: str) -> str:
    """For people, who compare it by telephone.

    >>> format_fingerprint("0a1b2c" + 29 * "00")[:11]
    '0A:1B:2C:00'
    """
    return ":".join(re.findall("..", fingerprint.upper()))


def parse_fingerprint(text: str) -> str:
    """64 hexadecimal digits, however they were written. Raises ValueError.

    >>> parse_fingerprint("sha256:" + 32 * "0A:")[:6]
    '0a0a0a'
    """
    digits = re.sub(r"[\s:]", "", text.lower().strip().removeprefix("sha256").removeprefix("-256"))
    if not re.fullmatch(r"[0-9a-f]{64}", digits, re.ASCII):
        raise ValueError(
            "is not a SHA-256 fingerprint; write it as 64 hexadecimal digits, with or without colons"
        )
    return digits
