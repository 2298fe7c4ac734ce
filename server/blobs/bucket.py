"""A bucket of S3, or of what speaks its protocol: where it is, how to get in, and its errors in our words."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from server.settings import Settings
from shared.problems import InvalidConfiguration, StorageUnavailable

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

__all__ = ["Bucket"]

PIECE_BYTES = 8 * 2**20
"""Of one request: so none takes long, and a broken one costs little."""
REQUEST_TIME = dt.timedelta(seconds=120)
RETRIES = 3
RETRY_TIME = dt.timedelta(seconds=20)
LISTED = 1000


class Bucket:
    """Objects below one prefix. All methods block.

    Raise FileNotFoundError where an object is not there, StorageUnavailable where the bucket refuses or does
    not answer. Neither repeats what the service has said: its words can hold key ids and signatures.
    """

    def __init__(self, address: str, settings: Settings) -> None:
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError
            from obstore.store import S3Store
        except ModuleNotFoundError:
            raise InvalidConfiguration(
                f"blob_store {address} needs the package obstore",
                hint="Install it: pip install 'feddisco[s3]'.",
            ) from None
        self.address = address
        self._api, self._exists, self._error = obstore, AlreadyExistsError, BaseError
        name, _, prefix = address.removeprefix("s3://").partition("/")
        with self._answers():
            self._store: S3Store = S3Store(
                name, prefix=prefix or None, config=_find_config(settings), **_find_options(settings)
            )

    def __str__(self) -> str:
        return self.address

    def head(self, key: str) -> ObjectMeta:
        with self._answers():
            return self._api.head(self._store, key)

    def read(self, key: str) -> bytes:
        """A small object."""
        with self._answers():
            return bytes(self._api.get(self._store, key).bytes())

    def read_pieces(self, key: str, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
        size = self.head(key)["size"]
        for start in range(0, size, piece_bytes):
            with self._answers():
                piece = self._api.get_range(self._store, key, start=start, end=min(size, start + piece_bytes))
            yield bytes(piece)

    def write(self, key: str, content: Any) -> None:
        """``content``: bytes, or the path of a file. The object is there whole and durably, or not at all."""
        try:
            with self._answers():
                self._api.put(self._store, key, content, chunk_size=PIECE_BYTES, max_concurrency=4)
        except FileNotFoundError:
            raise self._no_bucket() from None

    def create(self, key: str, content: bytes) -> None:
        """Unless there is an object of this name."""
        try:
            with self._answers():
                self._api.put(self._store, key, content, mode="create")
        except self._exists:
            return
        except FileNotFoundError:
            raise self._no_bucket() from None

    def delete(self, keys: list[str]) -> None:
        if keys:
            with self._answers():
                self._api.delete(self._store, keys)

    def list(self, prefix: str | None = None) -> Iterator[ObjectMeta]:
        """In the order of their names."""
        try:
            with self._answers():
                for part in self._api.list(self._store, prefix, chunk_size=LISTED):
                    yield from part
        except FileNotFoundError:
            raise self._no_bucket() from None

    def _no_bucket(self) -> StorageUnavailable:
        return StorageUnavailable(f"{self} {NO_BUCKET}", hint=_HINT)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, self._exists):
            raise
        except (self._error, OSError, ValueError) as error:
            raise StorageUnavailable(f"{self} {_explain(str(error))}", hint=_HINT) from None


NO_BUCKET = "cannot be used: there is no such bucket"
_HINT = "Check its address, its credentials and what they may do (docs/operations.md); then try again."
_REFUSALS = {
    "AccessDenied": "does not let these credentials do this (AccessDenied)",
    "InvalidAccessKeyId": "does not know the access key (InvalidAccessKeyId)",
    "SignatureDoesNotMatch": "refuses the secret access key (SignatureDoesNotMatch)",
    "ExpiredToken": "refuses credentials that have expired (ExpiredToken)",
    "NoSuchBucket": NO_BUCKET,
    "SlowDown": "asks for fewer requests (SlowDown)",
}


def _explain(message: str) -> str:
    """What the service said, by its code alone."""
    if code := re.search(r"<Code>([A-Za-z]{3,40})</Code>", message):
        return _REFUSALS.get(code[1], f"refuses: {code[1]}")
    if status := re.search(r"status code: (\d{3})", message):
        return f"answers with status {status[1]}"
    return "does not answer"


def _find_config(settings: Settings) -> Any:
    """Without these, what the environment, the container or the machine gives (AWS_*)."""
    secrets = {
        "access_key_id": settings.s3_access_key_id,
        "secret_access_key": settings.s3_secret_access_key,
    }
    given = {name: value.get_secret_value() for name, value in secrets.items() if value is not None}
    places = {"endpoint": settings.s3_endpoint, "region": settings.s3_region}
    given |= {name: value for name, value in places.items() if value is not None}
    # not every service deletes several in one request; those that do are no faster with a few
    return {"checksum_algorithm": "SHA256", "disable_bulk_delete": True, **given}


def _find_options(settings: Settings) -> dict[str, Any]:
    client: dict[str, Any] = {"timeout": REQUEST_TIME}
    if settings.s3_endpoint is not None and settings.s3_endpoint.startswith("http:"):
        client["allow_http"] = True
    if settings.s3_ca_file is not None:
        try:
            client["root_certificate"] = settings.s3_ca_file.read_bytes()
        except OSError as error:
            raise InvalidConfiguration(
                f"s3_ca_file: {settings.s3_ca_file} cannot be read: {error.strerror}"
            ) from error
    return {
        "client_options": client,
        "retry_config": {"max_retries": RETRIES, "retry_timeout": RETRY_TIME},
    }
