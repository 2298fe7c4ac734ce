"""SHA-256 digests: of files, and in the ``Content-Digest`` header (RFC 9530)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path

from shared.problems import InvalidRequest

__all__ = ["base64_to_hex", "digest_of", "format_content_digest", "hex_to_base64", "parse_content_digest"]

ALGORITHM = "sha-256"
DIGEST_BYTES = 32
MAX_HEADER_LENGTH = 4096

# a dictionary of RFC 8941: key "=" byte sequence, perhaps with parameters
_MEMBER = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):((?:;[ ]*[a-z*][^,;]*)*)", re.ASCII)


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal, in constant memory. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hex_to_base64(digest: str) -> str:
    """
    >>> hex_to_base64("00" * 32)
    'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='
    """
    return base64.b64encode(bytes.fromhex(digest)).decode("ascii")


def base64_to_hex(text: str) -> str:
    """The inverse of :func:`hex_to_base64`; InvalidRequest if ``text`` is not base64 of 32 bytes."""
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _malformed(f"{text[:60]!a} is not base64 ({error})") from error
    if len(digest) != DIGEST_BYTES:
        raise _malformed(f"{ALGORITHM} has {DIGEST_BYTES} bytes, received are {len(digest)}")
    return digest.hex()


def format_content_digest(digest: str) -> str:
    """The header's value for a hexadecimal SHA-256.

    >>> format_content_digest("00" * 32)
    'sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:'
    """
    return f"{ALGORITHM}=:{hex_to_base64(digest)}:"


def parse_content_digest(header: str | None) -> str | None:
    """The SHA-256, hexadecimal, that a ``Content-Digest`` header announces; None if it announces none.

    Other algorithms are ignored; of several ``sha-256`` members the last counts (RFC 8941, 3.2).
    Raises InvalidRequest.
    """
    if header is None:
        return None
    if len(header) > MAX_HEADER_LENGTH:
        raise _malformed(f"the header has {len(header)} characters, allowed are {MAX_HEADER_LENGTH}")
    found = None
    for member in header.split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match is None:
            raise _malformed(f"received {member.strip()[:100]!a}")
        if match[1] == ALGORITHM:
            found = base64_to_hex(match[2])
    return found


def _malformed(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the Content-Digest is malformed: {reason}",
        hint=f"Write {ALGORITHM}=:BASE64: with the base64 of the body's SHA-256 between colons (RFC 9530).",
    )
