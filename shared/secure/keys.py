"""Keys: identities (Ed25519), agreement (X25519), derivation (HKDF-SHA256), sealing (AES-256-GCM)."""

from __future__ import annotations

import os
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shared.secure.encoding import encode
from shared.secure.faults import ProtocolRefused

__all__ = [
    "agree_on_secret",
    "agreement_key_of",
    "derive_key",
    "has_signed",
    "identity_of",
    "make_agreement_key",
    "make_identity",
    "open_sealed",
    "seal",
    "sign",
]

_NONCE_BYTES = 12


def make_identity() -> bytes:
    """A new private Ed25519 key, 32 bytes."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def identity_of(private: bytes) -> bytes:
    """The public key, 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """A signature of 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def has_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of ``public`` has signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def make_agreement_key() -> bytes:
    """A new private X25519 key, 32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def agreement_key_of(private: bytes) -> bytes:
    """The public key, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree_on_secret(private: bytes, public: bytes) -> bytes:
    """The 32 bytes that only the owners of the two keys know.

    Raises:
        ProtocolRefused: ``public`` is no key that a secret can come of (of small order).
    """
    try:
        peer = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError as error:
        raise ProtocolRefused("a public key gives no shared secret") from error


def derive_key(secret: bytes, purpose: str, *context: Any) -> bytes:
    """A key of 256 bits from a secret, for this purpose and context alone."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=encode(purpose, *context)).derive(secret)


def seal(key: bytes, message: bytes, associated: bytes) -> bytes:
    """Encrypted, and authenticated together with ``associated``; begins with its nonce."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, message, associated)


def open_sealed(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The message.

    Raises:
        ProtocolRefused: it was changed, or sealed with another key or for another place.
    """
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
    except (InvalidTag, ValueError) as error:
        raise ProtocolRefused(
            "a sealed message was changed on its way, or is meant for somebody else"
        ) from error
