"""Certificates that are known by their fingerprints: beside the usual check, or in its place."""

from __future__ import annotations

import ssl
from collections.abc import Collection

from shared.fingerprints import fingerprint_of

__all__ = ["UnexpectedCertificate", "pin_certificates", "trust_only"]


class UnexpectedCertificate(ssl.SSLError):
    """Raised before anything is sent. ``fingerprint`` is the SHA-256 of what was shown.

    ``expected``: that of the one certificate which is trusted; None: it is none of the policy's.
    """

    def __init__(self, fingerprint: str, expected: str | None = None) -> None:
        super().__init__(f"the certificate has the fingerprint {fingerprint}")
        self.fingerprint = fingerprint
        self.expected = expected


def trust_only(fingerprint: str) -> ssl.SSLContext:
    """Connections that end in the handshake, unless they meet the certificate with this SHA-256.

    No authority is asked, and neither the names in the certificate nor its dates count: whoever has its
    private key is the coordinator.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # by OpenSSL: every handshake is checked below
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_handshakes(context, (fingerprint,), fingerprint)
    return context


def pin_certificates(context: ssl.SSLContext, fingerprints: Collection[str]) -> None:
    """Let every handshake of ``context`` fail whose certificate has another SHA-256 (hexadecimal)."""
    _check_handshakes(context, fingerprints, None)


def _check_handshakes(context: ssl.SSLContext, fingerprints: Collection[str], expected: str | None) -> None:
    def check(certificate: bytes | None) -> None:
        found = fingerprint_of(certificate or b"")
        if found not in fingerprints:
            raise UnexpectedCertificate(found, expected)

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
