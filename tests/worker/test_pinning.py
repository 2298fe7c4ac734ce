"""One certificate is trusted, by its fingerprint: whatever it says, and no other whatever that says."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import httpx
import pytest
import trustme

from server.certificates import make_self_signed
from shared.fingerprints import fingerprint_of, format_fingerprint
from tests.helpers.http_servers import Answer, Request, http_server
from worker.client import CoordinatorClient
from worker.diagnose import diagnose
from worker.trust import UnexpectedCertificate, trust_only

Serve = Callable[[ssl.SSLContext], AbstractContextManager[str]]


def make(path: Path, name: str = "other.example") -> tuple[ssl.SSLContext, str]:
    """A server's context with a new certificate, and the certificate's fingerprint."""
    make_self_signed(path, [name])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    pem = path.read_text()
    return context, fingerprint_of(ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERT") :]))


@pytest.fixture
def heard() -> list[Request]:
    return []


@pytest.fixture
def serve(heard: list[Request]) -> Serve:
    def answer(request: Request) -> Answer:
        heard.append(request)
        return Answer(200, b"[]")

    return lambda context: http_server(answer, tls=context)


def test_the_certificate_counts_and_no_name_in_it(tmp_path: Path, serve: Serve) -> None:
    context, fingerprint = make(tmp_path / "own.pem")
    with serve(context) as url, CoordinatorClient(url, verify=trust_only(fingerprint)) as client:
        assert client.runs() == []


def refused(url: str, fingerprint: str) -> str:
    """What a person reads."""
    pinned = CoordinatorClient(url, token="secret-token", verify=trust_only(fingerprint))
    with pinned as client, pytest.raises(httpx.ConnectError) as caught:
        client.runs()
    return diagnose(caught.value, url).sentence


def test_another_certificate_is_refused_before_anything_is_sent(
    tmp_path: Path, serve: Serve, heard: list[Request]
) -> None:
    _, expected = make(tmp_path / "own.pem")
    context, shown = make(tmp_path / "other.pem")  # for the same names
    with serve(context) as url:
        said = refused(url, expected)
        assert f"The certificate of {url} is not the expected one" in said
        assert format_fingerprint(shown) in said
        assert format_fingerprint(expected) in said
        assert "Nothing was sent" in said
    assert heard == []


def test_a_good_authority_does_not_help(serve: Serve, heard: list[Request]) -> None:
    authority = trustme.CA()
    issued, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    blobs = (issued.cert_chain_pems[0], authority.cert_pem, other.cert_chain_pems[0])
    own, above, beside = (fingerprint_of(ssl.PEM_cert_to_DER_cert(blob.bytes().decode())) for blob in blobs)
    with serve(context) as url:
        for fingerprint in (above, beside, "0" * 64):
            refused(url, fingerprint)
        assert heard == []
        with CoordinatorClient(url, verify=trust_only(own)) as client:
            assert client.runs() == []


def test_every_connection_is_checked(tmp_path: Path, serve: Serve, heard: list[Request]) -> None:
    """The certificate changes while the client lives: its next connection is refused."""
    context, fingerprint = make(tmp_path / "own.pem")
    with serve(context) as url, CoordinatorClient(url, verify=trust_only(fingerprint)) as client:
        assert client.runs() == []
        make(tmp_path / "other.pem")
        context.load_cert_chain(tmp_path / "other.pem")
        client._http._transport.close()  # as a connection that broke
        with pytest.raises(httpx.ConnectError) as caught:
            client.runs()
        assert isinstance(_cause(caught.value), UnexpectedCertificate)
    assert len(heard) == 1


def _cause(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def test_tls_inside_tls_is_checked(tmp_path: Path) -> None:
    """As through a proxy that is itself reached by TLS."""
    context, _ = make(tmp_path / "own.pem")
    _, expected = make(tmp_path / "other.pem")
    client_in, client_out, server_in, server_out = (ssl.MemoryBIO() for _ in range(4))
    client = trust_only(expected).wrap_bio(client_in, client_out, server_hostname="any.example")
    server = context.wrap_bio(server_in, server_out, server_side=True)

    def shake_hands() -> None:
        for side in (client, server, client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            server_in.write(client_out.read())
            client_in.write(server_out.read())

    with pytest.raises(UnexpectedCertificate):
        shake_hands()
