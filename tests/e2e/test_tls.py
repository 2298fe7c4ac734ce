"""TLS from a throw-away certificate authority, as a site meets it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.helpers.processes import Deployment, deployment, run_config

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("outside")]


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


def test_a_run_over_tls(secured: Deployment, authority: Path) -> None:
    url = secured.urls["coordinator"]
    assert url.startswith("https://")
    secured.start_worker("stranger")
    secured.start_worker("site", "--ca-file", str(authority), "--partition", "run")
    secured.create(run_config("secret", partition="iid:1", rounds=2))
    assert len(secured.digest("secret")) == 64
    refused = secured.wait_for(lambda: secured.log("stranger"), "the other worker says something")
    assert f"The certificate of {url} is not trusted" in refused
    assert "pass that authority's file with --ca-file" in refused
    assert "Traceback" not in refused
    assert [client.client for client in secured.admin.clients()] == ["site"]

    shown = secured.console("run", "list", "--url", url, settings={"ca_file": authority})
    assert "secret" in shown
    told = secured.console("run", "list", "--url", url, code=2)
    assert told.startswith(f"feddisco: The certificate of {url} is not trusted")
