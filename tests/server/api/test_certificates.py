"""A certificate of the coordinator's own, and what join codes tell of it."""

from __future__ import annotations

import hashlib
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography import x509

from server.certificates import Entrance, find_entrance, list_names, make_self_signed, with_certificate
from server.settings import Settings
from shared.fingerprints import format_fingerprint, parse_fingerprint
from shared.problems import InvalidConfiguration


def signed(folder: Path, **settings: Any) -> Settings:
    return with_certificate(Settings(data_folder=folder, self_signed=True, **settings))


def test_it_is_made_once_and_kept_to_its_owner(tmp_path: Path) -> None:
    settings = signed(tmp_path, public_url="https://coordinator.example:8000")
    path = tmp_path / "self-signed.pem"
    assert (settings.tls_certificate, settings.tls_key) == (path, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert signed(tmp_path, public_url="https://elsewhere.example") == settings.model_copy(
        update={"public_url": "https://elsewhere.example"}
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert with_certificate(Settings(data_folder=tmp_path)).tls_certificate is None, "only if asked"


def test_several_first_starts_end_up_with_one(tmp_path: Path) -> None:
    path = tmp_path / "self-signed.pem"
    threads = [threading.Thread(target=make_self_signed, args=(path, ["a.example"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)  # refuses a key that belongs to another certificate
    assert list(tmp_path.iterdir()) == [path]


def test_its_names_are_those_that_it_is_called_by(tmp_path: Path) -> None:
    settings = signed(tmp_path, public_url="https://Coordinator.example:8000", host="192.0.2.7")
    assert settings.tls_certificate is not None
    (certificate,) = x509.load_pem_x509_certificates(settings.tls_certificate.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    here = socket.gethostname().lower()
    assert names == {"coordinator.example", "192.0.2.7", here, "localhost", "127.0.0.1", "::1"}
    assert list_names(Settings(host="0.0.0.0"))[0] == here
    with pytest.raises(InvalidConfiguration, match="cannot be in a certificate"):
        make_self_signed(tmp_path / "other.pem", ["a" * 70 + ".example"])


def test_the_fingerprint_is_the_one_that_openssl_prints(tmp_path: Path) -> None:
    settings = signed(tmp_path)
    found = find_entrance(settings).fingerprint
    assert found is not None
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", str(settings.tls_certificate)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip().rpartition("=")[2] == format_fingerprint(found)
    assert parse_fingerprint(printed.strip().rpartition("=")[2]) == found


def test_what_join_codes_tell(tmp_path: Path) -> None:
    own = signed(tmp_path).tls_certificate
    assert own is not None
    digest = find_entrance(signed(tmp_path)).fingerprint
    here = socket.gethostname().lower()
    cases: list[tuple[dict[str, Any], Entrance]] = [
        ({"self_signed": False}, Entrance()),
        ({"self_signed": False, "public_url": "https://a.example"}, Entrance("https://a.example")),
        ({}, Entrance("https://127.0.0.1:8000", digest)),
        ({"host": "192.0.2.7"}, Entrance("https://192.0.2.7:8000", digest)),
        ({"host": "2001:db8::1"}, Entrance("https://[2001:db8::1]:8000", digest)),
        ({"host": "0.0.0.0", "port": 9000}, Entrance(f"https://{here}:9000", digest)),
        ({"port": 0}, Entrance(None, digest)),
        ({"public_url": "https://a.example:1/"}, Entrance("https://a.example:1", digest)),
    ]
    for given, expected in cases:
        settings = with_certificate(Settings(data_folder=tmp_path, **{"self_signed": True, **given}))
        assert find_entrance(settings) == expected, given


def test_a_certificate_of_an_authority_is_not_pinned(tmp_path: Path) -> None:
    """It is renewed, and sites trust its authority."""
    issued = trustme.CA().issue_cert("*.example", "coordinator.example")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(certificate), append=True)
    issued.private_key_pem.write_to_path(str(key))
    given: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key, "host": "0.0.0.0"}
    assert find_entrance(Settings(**given)) == Entrance("https://coordinator.example:8000")
    with pytest.raises(ValueError, match="contradict"):
        Settings(self_signed=True, **given)


def test_it_serves_as_a_ca_file_too(tmp_path: Path) -> None:
    from tests.helpers.http_servers import Answer, http_server

    path = tmp_path / "own.pem"
    make_self_signed(path, ["localhost", "127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with http_server(lambda _: Answer(200, b"[]"), tls=context) as url:
        assert httpx.get(url, verify=ssl.create_default_context(cafile=str(path))).status_code == 200
        pem = ssl.get_server_certificate(("127.0.0.1", int(url.rpartition(":")[2])))
    der = ssl.PEM_cert_to_DER_cert(pem)
    settings = Settings(tls_certificate=path, tls_key=path)
    assert find_entrance(settings).fingerprint == hashlib.sha256(der).hexdigest()
