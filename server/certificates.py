"""The coordinator's certificate: made here if asked, and what sites need to know of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from server.settings import Settings
from shared.addresses import is_loopback
from shared.files import PRIVATE, replace_file
from shared.fingerprints import SELF_SIGNED_FILE, fingerprint_of
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Entrance", "find_entrance", "make_self_signed", "with_certificate"]

YEARS = 10
LONGEST_NAME = 64
EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - what it means, not where to listen
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def with_certificate(settings: Settings) -> Settings:
    """With ``self_signed``, the settings with the files of the certificate, made at the first start."""
    if not settings.self_signed:
        return settings
    path = settings.data_folder / SELF_SIGNED_FILE
    if not path.exists():
        make_self_signed(path, list_names(settings))
    return settings.model_copy(update={"tls_certificate": path, "tls_key": path})


def list_names(settings: Settings) -> list[str]:
    """By which names and addresses the coordinator may be called: the public one first."""
    public = urlsplit(settings.public_url or "").hostname
    bound = None if settings.host in EVERY_INTERFACE else settings.host
    names = (public, bound, socket.gethostname(), *LOCAL_NAMES)
    return list(dict.fromkeys(name.lower() for name in names if name))


def make_self_signed(path: Path, names: Sequence[str]) -> None:
    """Write a new private key and its certificate for ``names``; a file that is there already stays."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:LONGEST_NAME])])
    public = key.public_key()
    builder = (
        x509.CertificateBuilder(subject, subject, public, x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_part = certificate.public_bytes(serialization.Encoding.PEM)
    replace_file(path, secret + public_part, mode=PRIVATE, overwrite=False)


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    try:
        return x509.DNSName(name.encode("idna").decode())
    except UnicodeError as error:
        raise InvalidConfiguration(f"the name {name!r} cannot be in a certificate: {error}") from error


@dataclass(frozen=True)
class Entrance:
    """How sites reach this coordinator: ``url``, if it is known, and the fingerprint of a certificate that no
    authority has signed."""

    url: str | None = None
    fingerprint: str | None = None


def find_entrance(settings: Settings) -> Entrance:
    """From the settings of a coordinator whose certificate has been checked."""
    if settings.tls_certificate is None:
        return Entrance(settings.public_url)
    certificate = _read_certificate(settings.tls_certificate)
    fingerprint = None
    if certificate.issuer == certificate.subject:
        from cryptography.hazmat.primitives.serialization import Encoding

        fingerprint = fingerprint_of(certificate.public_bytes(Encoding.DER))
    return Entrance(settings.public_url or _guess_url(settings, certificate), fingerprint)


def _guess_url(settings: Settings, certificate: x509.Certificate) -> str | None:
    """None where only the operating system will know the port."""
    named = (
        settings.host if settings.host not in EVERY_INTERFACE else _first_elsewhere(_names_in(certificate))
    )
    if settings.port == 0 or named is None:
        return None
    return f"https://{f'[{named}]' if ':' in named else named}:{settings.port}"


def _first_elsewhere(names: Iterable[str]) -> str | None:
    return next((name for name in names if not is_loopback(name) and "*" not in name), None)


def _names_in(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _read_certificate(path: Path) -> x509.Certificate:
    """The first one in the file: the coordinator's own."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except (ValueError, ssl.SSLError) as error:
        raise InvalidConfiguration(f"tls_certificate {path} cannot be read: {error}") from error
