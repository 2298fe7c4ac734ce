"""TLS from a throw-away certificate authority, as a site meets it."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.helpers.processes import Deployment, deployment, run_config

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("outside")]


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The authority's certificate; beside it ``server.pem`` and ``server.key`` for 127.0.0.1."""
    made = trustme.CA()
    certificate = made.issue_cert("127.0.0.1")
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "server.pem"), append=True)
    return tmp_path / "authority.pem"


@pytest.fixture
def secured(authority: Path, tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path / "system") as made:
        made.start_coordinator(
            verify=ssl.create_default_context(cafile=str(authority)),
            settings={"tls_certificate": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"},
        )
        yield made


def fingerprint(folder: Path) -> str:
    pem = (folder / "server.pem").read_text().partition("-----END CERTIFICATE-----")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[0] + pem[1])).hexdigest()


def policy(folder: Path, name: str, fingerprint: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(f"coordinators: ['{fingerprint}']\n")
    return str(path)


def test_a_run_over_tls(secured: Deployment, authority: Path, tmp_path: Path) -> None:
    url = secured.urls["coordinator"]
    assert url.startswith("https://")
    secured.start_worker("stranger")
    flags = ("--ca-file", str(authority), "--partition", "run")
    secured.start_worker("site", *flags, "--policy", policy(tmp_path, "site", fingerprint(tmp_path)))
    secured.start_worker("elsewhere", *flags, "--policy", policy(tmp_path, "elsewhere", "0" * 64))
    secured.create(run_config("secret", partition="iid:1", rounds=2))
    assert len(secured.digest("secret")) == 64
    refused = secured.wait_for(lambda: secured.log("stranger"), "the other worker says something")
    assert f"The certificate of {url} is not trusted" in refused
    assert "pass that authority's file with --ca-file" in refused
    assert "Traceback" not in refused
    told = secured.wait_for(
        lambda: secured.log("elsewhere"), "the worker of another coordinator says something"
    )
    assert "which is none of the coordinators in this site's policy. Nothing was sent." in told
    assert [client.client for client in secured.admin.clients()] == ["site"]

    shown = secured.console("run", "list", "--url", url, settings={"ca_file": authority})
    assert "secret" in shown
    told = secured.console("run", "list", "--url", url, code=2)
    assert told.startswith(f"feddisco: The certificate of {url} is not trusted")
