"""Which certificates a coordinator may show beside the usual check: those with given fingerprints."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection

__all__ = ["UnexpectedCertificate", "pin_certificates"]


class UnexpectedCertificate(ssl.SSLError):
    """Raised before anything is sent. ``fingerprint`` is the SHA-256 of what was shown."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(f"the certificate has the fingerprint {fingerprint}")
        self.fingerprint = fingerprint


def pin_certificates(context: ssl.SSLContext, fingerprints: Collection[str]) -> None:
    """Let every handshake of ``context`` fail whose certificate has another SHA-256 (hexadecimal)."""

    def check(certificate: bytes | None) -> None:
        found = hashlib.sha256(certificate or b"").hexdigest()
        if found not in fingerprints:
            raise UnexpectedCertificate(found)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(binary_form=True))

    class PinnedObject(ssl.SSLObject):  # through a proxy that is itself reached by TLS
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True))

    context.sslsocket_class = PinnedSocket
    context.sslobject_class = PinnedObject
