"""Join codes: a coordinator's address, its certificate's fingerprint and a join token, in one string.

::

    fdj1.BASE64URL       of six bytes of SHA-256 of the rest, and a JSON object:
                         a: address, f: fingerprint (base64url), t: join token

The six bytes tell a mistyped or cut code from a wrong one. A join token alone is a join code, too, that
leaves the address to be given.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field

from shared.addresses import check_address
from shared.fingerprints import parse_fingerprint
from shared.problems import InvalidConfiguration

__all__ = ["JoinCode", "read_join_code", "write_join_code"]

PREFIX = "fdj1."
CHECK_BYTES = 6
LONGEST_TOKEN = 128
"""A longer text is a join code whose beginning is missing."""


@dataclass(frozen=True)
class JoinCode:
    """``fingerprint``: of the certificate to be met, 64 hexadecimal digits; None: one of an authority."""

    token: str = field(repr=False)
    address: str | None = None
    fingerprint: str | None = None


def write_join_code(code: JoinCode) -> str:
    """The string to paste; for a code without an address, the join token itself."""
    if code.address is None:
        return code.token
    pin = {} if code.fingerprint is None else {"f": _encode(bytes.fromhex(code.fingerprint))}
    parts = {"a": code.address, **pin, "t": code.token}
    content = json.dumps(parts, separators=(",", ":"), ensure_ascii=True).encode()
    return PREFIX + _encode(_check(content) + content)


def read_join_code(text: str) -> JoinCode:
    """The code in ``text``, wherever lines were broken.

    Raises :class:`InvalidConfiguration` for a damaged one, without showing it.
    """
    code = re.sub(r"\s", "", text)
    version = re.match(r"fdj(\d{1,4})\.", code, re.ASCII | re.IGNORECASE)
    if version is None and len(code) <= LONGEST_TOKEN:
        return JoinCode(code)
    if version is not None and version[1] != "1":
        raise InvalidConfiguration(
            f"the join code is of version {version[1]}, this program reads version 1.",
            hint="Install the coordinator's version here.",
        )
    try:
        content = _decode(code.removeprefix(PREFIX))
        check, content = content[:CHECK_BYTES], content[CHECK_BYTES:]
        if not code.startswith(PREFIX) or check != _check(content):
            raise ValueError
        return _read_parts(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidConfiguration(
            "the join code is damaged: a character is missing or wrong.",
            hint="Copy it again, the whole of it, from what `feddisco clients invite` printed.",
        ) from None


def _read_parts(parts: dict[str, str]) -> JoinCode:
    token, pin = parts["t"], parts.get("f")
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError
    fingerprint = None if pin is None else parse_fingerprint(_decode(pin).hex())
    return JoinCode(token, check_address(parts["a"]), fingerprint)


def _check(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:CHECK_BYTES]


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
