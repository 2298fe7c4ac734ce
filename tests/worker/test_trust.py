"""A coordinator that shows another certificate than those of the policy gets nothing at all."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trustme

from shared.schemas import Wait
from tests.helpers.http_servers import Answer, Request, http_server
from worker.client import CoordinatorClient, load_trust
from worker.diagnose import diagnose
from worker.trust import UnexpectedCertificate, pin_certificates

WAIT = Answer(body=b'{"kind": "wait", "reason": "nobody else is here"}')
OTHER = "0" * 64


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    return made


@pytest.fixture
def server(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def requests() -> list[Request]:
    return []


@pytest.fixture
def url(server: ssl.SSLContext, requests: list[Request]) -> Iterator[str]:
    def answer(request: Request) -> Answer:
        requests.append(request)
        return WAIT

    with http_server(answer, tls=server) as found:
        yield found


def fingerprint_at(url: str) -> str:
    parts = httpx.URL(url)
    pem = ssl.get_server_certificate((parts.host, parts.port or 443))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


@pytest.mark.usefixtures("authority")
def test_the_certificate_named_is_content(url: str, tmp_path: Path) -> None:
    verify = load_trust(tmp_path / "authority.pem", (OTHER, fingerprint_at(url)))
    with CoordinatorClient(url, verify=verify) as coordinator:
        assert coordinator.work(0) == Wait(reason="nobody else is here")


@pytest.mark.usefixtures("authority")
def test_another_certificate_of_the_right_authority_gets_nothing(
    url: str, requests: list[Request], tmp_path: Path
) -> None:
    verify = load_trust(tmp_path / "authority.pem", (OTHER,))
    coordinator = CoordinatorClient(url, token="secret", verify=verify)
    with coordinator, pytest.raises(httpx.ConnectError) as caught:
        coordinator.work(0)
    assert requests == []
    found = diagnose(caught.value, url)
    assert f"SHA-256 fingerprint {fingerprint_at(url)}, which is none of the coordinators" in found.sentence
    assert not found.fatal  # a portal in between may go away


def test_a_fingerprint_is_no_substitute_for_the_usual_check(url: str, requests: list[Request]) -> None:
    coordinator = CoordinatorClient(url, verify=load_trust(None, (fingerprint_at(url),)))
    with coordinator, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        coordinator.work(0)
    assert requests == []


def test_through_a_proxy_that_is_reached_by_tls_it_is_the_same(
    authority: trustme.CA, server: ssl.SSLContext
) -> None:
    """The handshake inside another connection's bytes, as the HTTP client makes it."""
    client = ssl.create_default_context()
    authority.configure_trust(client)
    pin_certificates(client, (OTHER,))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(UnexpectedCertificate):
        shake_hands(ours, theirs)


def shake_hands(*sides: ssl.SSLObject) -> None:
    for side in sides * 10:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
