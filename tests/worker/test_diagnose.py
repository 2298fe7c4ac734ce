"""Each fault of the network and the disk, made for real, gets its own sentence."""

from __future__ import annotations

import datetime as dt
import errno
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from server.certificates import make_self_signed
from shared import problems
from shared.files import storage_errors
from shared.schemas import Wait
from tests.helpers.http_servers import Answer, closed_port, http_server, listening
from worker.answers import UnexpectedAnswer
from worker.client import CoordinatorClient
from worker.diagnose import Diagnosis, diagnose


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_url(authority: trustme.CA) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    wait = Answer(body=b'{"kind": "wait", "reason": "nobody else is here"}')
    with http_server(lambda _: wait, tls=context) as url:
        yield url


def _met(url: str, verify: ssl.SSLContext | bool = True) -> Diagnosis:
    with CoordinatorClient(url, verify=verify) as coordinator:
        try:
            coordinator.work(0)
        except httpx.HTTPError as error:
            return diagnose(error, url)
    pytest.fail("nothing was raised")


def test_a_name_that_does_not_exist() -> None:
    found = _met("https://coordinator.invalid:8000")
    assert "The name coordinator.invalid cannot be resolved" in found.sentence
    assert not found.fatal  # DNS comes back


def test_a_port_on_which_nobody_listens() -> None:
    port = closed_port()
    found = _met(f"http://127.0.0.1:{port}")
    assert f"Nothing listens on 127.0.0.1 port {port}" in found.sentence
    assert not found.fatal


def test_a_server_that_never_answers() -> None:
    with listening() as url, pytest.raises(httpx.ReadTimeout) as caught:
        httpx.get(url, timeout=0.1)
    assert "does not answer in time" in diagnose(caught.value, url).sentence


def test_a_firewall_that_drops_packets() -> None:
    error = httpx.ConnectTimeout("timed out")  # cannot be made on loopback
    assert "h port 443 does not answer within 10 s" in diagnose(error, "https://h").sentence


def test_no_route() -> None:
    error = httpx.ConnectError("no route")
    error.__cause__ = OSError(errno.EHOSTUNREACH, "No route to host")
    assert "no route to h" in diagnose(error, "https://h").sentence


def test_tls_spoken_to_a_plain_port() -> None:
    with http_server(lambda _: Answer(204)) as url:
        found = _met(url.replace("http", "https"))
        assert "does not speak TLS" in found.sentence
        assert found.sentence.endswith(url)  # the address to use instead


def test_plain_http_spoken_to_a_tls_port(tls_url: str) -> None:
    found = _met(tls_url.replace("https", "http"))
    assert "If the coordinator uses TLS" in found.sentence
    assert found.sentence.endswith(tls_url)


def test_a_certificate_of_an_unknown_authority(tls_url: str) -> None:
    sentence = _met(tls_url).sentence
    assert "is not trusted" in sentence
    assert "--ca-file" in sentence


def test_a_certificate_for_another_name(authority: trustme.CA) -> None:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("elsewhere.example").configure_cert(server)
    authority.configure_trust(client)
    with http_server(lambda _: Answer(204), tls=server) as url:
        sentence = _met(url, verify=client).sentence
    assert "127.0.0.1" in sentence
    assert "'127.0.0.1'. Give the address by a name that is in the certificate" in sentence
    assert "--ca-file" not in sentence


def test_a_certificate_that_has_expired(authority: trustme.CA) -> None:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    first, last = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2024, 2025))
    authority.issue_cert("127.0.0.1", not_before=first, not_after=last).configure_cert(server)
    authority.configure_trust(client)
    with http_server(lambda _: Answer(204), tls=server) as url:
        sentence = _met(url, verify=client).sentence
    assert "has expired. Check this machine's clock" in sentence
    assert "--ca-file" not in sentence


def test_a_certificate_of_the_coordinators_own(tmp_path: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    make_self_signed(tmp_path / "own.pem", ["127.0.0.1"])
    server.load_cert_chain(tmp_path / "own.pem")
    with http_server(lambda _: Answer(204), tls=server) as url:
        sentence = _met(url).sentence
    assert (
        "self-signed certificate. If it is the coordinator's own, its fingerprint is in the join" in sentence
    )


def test_the_right_authority_is_content(tls_url: str, authority: trustme.CA) -> None:
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with CoordinatorClient(tls_url, verify=client) as coordinator:
        assert coordinator.work(0) == Wait(reason="nobody else is here")


@pytest.mark.parametrize(
    ("error", "registering", "words", "fatal"),
    [
        (problems.WrongToken("no"), True, "does not accept the join code", True),
        (problems.WrongToken("no"), False, "does not know this client's token", True),
        (problems.RevokedToken("no"), False, "has revoked this client's token", True),
        (problems.IncompatibleVersion("protocol 1 here, 2 there"), True, "protocol 1 here, 2 there", True),
        (problems.NameTaken("name north is in use"), True, "name north is in use", True),
        (
            problems.StorageUnavailable("disk full over there"),
            False,
            "cannot answer at the moment: disk full",
            False,
        ),
        (
            problems.StorageUnavailable(
                "it does not answer", hint="Check host and port in the database URL."
            ),
            False,
            "cannot answer at the moment: it does not answer. Its operator can mend it.",
            False,
        ),
        (problems.RunOver("the run has ended"), False, "the run has ended", False),
        (UnexpectedAnswer(502, "text/html"), False, "A proxy answers", False),
        (UnexpectedAnswer(308, "text/html"), False, "redirects to another address", False),
        (UnexpectedAnswer(404, "text/html"), False, "is not a coordinator", False),
        (ZeroDivisionError("by zero"), False, "ZeroDivisionError: by zero", False),
    ],
)
def test_what_was_answered(error: Exception, registering: bool, words: str, fatal: bool) -> None:
    found = diagnose(error, "https://coordinator", registering=registering)
    assert words in found.sentence
    assert found.fatal is fatal


def _full() -> None:
    with Path("/dev/full").open("wb") as file:
        file.write(b"x")


def _full_in_shared_code() -> None:
    with storage_errors(Path("/dev")):
        _full()


@pytest.mark.parametrize("make", [_full, _full_in_shared_code])
def test_a_full_disk(make: Callable[[], None]) -> None:
    with pytest.raises((OSError, problems.StorageUnavailable)) as caught:
        make()
    found = diagnose(caught.value, "https://coordinator")
    assert "no space left" in found.sentence
    assert not found.fatal


def test_a_folder_of_somebody_else() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/srv/state")  # root may do anything
    found = diagnose(error, "https://coordinator")
    assert "may not read or write /srv/state" in found.sentence
    assert found.fatal
