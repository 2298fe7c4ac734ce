"""Large files are handed over to an nginx in front, where the setting says so."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.helpers.live_coordinator import ADMIN, Live, live, sha256, upload_headers

LARGE = bytes(range(256)) * (3 * 2**12)
SMALL = LARGE[:1000]
AUTHORIZED = {"Authorization": f"Bearer {ADMIN}"}
CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {url};
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
        location /stored/ {{ internal; alias {blobs}/; }}
    }}
}}
"""


def put(at: Live, body: bytes) -> str:
    address = f"/blobs/{sha256(body)}"
    at.admin.put(address, content=body, headers=upload_headers(body)).raise_for_status()
    return address


def test_a_large_file_is_handed_over_and_nothing_else(database_url: str, tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.1"}
    with live(database_url, tmp_path / "data", accel_redirect="/stored/") as at:
        large, small = put(at, LARGE), put(at, SMALL)
        handed = at.admin.get(large, headers=forwarded)
        assert (handed.status_code, handed.content) == (200, b"")
        place = handed.headers["X-Accel-Redirect"].removeprefix("/stored/")
        assert (at.coordinator.blobs.folder / place).read_bytes() == LARGE
        assert at.admin.get(large).content == LARGE, "without a proxy"
        assert at.admin.get(large, headers={**forwarded, "Range": "bytes=8-15"}).content == LARGE[8:16]
        assert at.admin.get(small, headers=forwarded).content == SMALL
        refused = httpx.get(f"{at.url}/api/v1{large}", headers=forwarded)
        assert refused.status_code == 401
        assert "X-Accel-Redirect" not in refused.headers


@contextmanager
def nginx(at: Live, folder: Path) -> Iterator[str]:
    """Its address, when it answers."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = CONFIG.format(
        folder=folder,
        user="user root;" if os.geteuid() == 0 else "",
        port=port,
        url=at.url,
        blobs=at.coordinator.blobs.folder,
    )
    (folder / "nginx.conf").write_text(config)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    running = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        for _ in range(200):
            assert running.poll() is None, (folder / "error.log").read_text()
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(10)


@pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="there is no nginx here"
)
def test_nginx_sends_what_it_is_handed_over(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data", accel_redirect="/stored/") as at:
        address = put(at, LARGE)
        with nginx(at, tmp_path / "nginx") as url, httpx.Client(base_url=url, timeout=30) as client:
            whole = client.get(f"/api/v1{address}", headers=AUTHORIZED)
            assert (whole.status_code, sha256(whole.content)) == (200, sha256(LARGE))
            assert whole.headers["Content-Type"] == "application/vnd.safetensors"
            assert client.get(f"/api/v1{address}").status_code == 401
            name = sha256(LARGE)
            assert client.get(f"/stored/{name[:2]}/{name}", headers=AUTHORIZED).status_code == 404
            part = client.get(f"/api/v1{address}", headers={**AUTHORIZED, "Range": "bytes=0-9"})
            assert (part.status_code, part.content) == (206, LARGE[:10])


def test_files_in_a_bucket_are_not_handed_over(tmp_path: Path) -> None:
    from pydantic import ValidationError

    from server.settings import Settings

    with pytest.raises(ValidationError, match="accel_redirect is for files in the data folder"):
        Settings(data_folder=tmp_path, accel_redirect="/stored/", blob_store="s3://bucket/prefix")
