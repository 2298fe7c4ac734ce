"""A service that speaks the protocol of S3, a process of its own on loopback with its objects in a folder.

Localbucket checks no credentials; what a service says that refuses them is another test's business.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from server.blobs.bucket import Bucket
from server.settings import Settings
from tests.helpers.http_servers import closed_port

__all__ = ["KEY", "SECRET", "S3Service", "s3_service"]

KEY, SECRET = "test-access-key", "test-secret-access-key"


class S3Service:
    """``url``: where it listens; ``folder``: a folder for each bucket, a file for each object."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def make_bucket(self) -> str:
        """The address of a new bucket's prefix, like s3://BUCKET/feddisco."""
        name = f"test-{secrets.token_hex(6)}"
        httpx.put(f"{self.url}/{name}").raise_for_status()
        return f"s3://{name}/feddisco"

    def settings(self, address: str) -> dict[str, str]:
        """The coordinator's, for files in this bucket."""
        return {
            "blob_store": address,
            "s3_endpoint": self.url,
            "s3_region": "us-east-1",
            "s3_access_key_id": KEY,
            "s3_secret_access_key": SECRET,
        }

    def open(self, address: str) -> Bucket:
        return Bucket(address, Settings.model_validate(self.settings(address)))

    def file(self, address: str, key: str) -> Path:
        """Where an object is, to be looked at, spoilt or made old."""
        return self.folder / address.removeprefix("s3://") / key


@contextlib.contextmanager
def s3_service(folder: Path) -> Iterator[S3Service]:
    """A running service that keeps everything in ``folder``."""
    port, log, data = closed_port(), folder / "s3.log", folder / "buckets"
    data.mkdir()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "localbucket", "--port", str(port), str(data)],
            env=os.environ,
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, log)
        yield S3Service(url, data)
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            httpx.get(url)
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"localbucket did not start: {log.read_text(errors='replace')[-2000:]}")
