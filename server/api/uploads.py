"""Headers and body of an upload, shared by updates and blobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from server.blobs import BlobStore, Incoming
from server.web.numbers import LARGEST_ANNOUNCED, parse_whole
from shared.problems import InvalidRequest, Truncated, UnsupportedMediaType
from shared.wire.digests import parse_content_digest

__all__ = [
    "MEDIA_TYPES",
    "UPLOAD_BODY",
    "read_announced_bytes",
    "read_announced_digest",
    "read_body",
    "receive_body",
]

MEDIA_TYPES = ("application/vnd.safetensors", "application/octet-stream")
UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES},
    },
    "parameters": [
        {
            "name": "Content-Digest",
            "in": "header",
            "required": True,
            "description": "sha-256=:BASE64: (RFC 9530)",
            "schema": {"type": "string"},
        }
    ],
}
"""For the OpenAPI document: FastAPI does not see a body that is read as a stream."""


def read_announced_digest(request: Request) -> str:
    """The SHA-256 that the headers announce, hexadecimal. Required: it shows when a body was cut short."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise UnsupportedMediaType(
            f"the body is {kind or 'of no type'}", hint=f"Send safetensors as {' or '.join(MEDIA_TYPES)}."
        )
    digest = parse_content_digest(request.headers.get("content-digest"))
    if digest is None:
        raise InvalidRequest(
            "the header Content-Digest is missing", hint="Send `Content-Digest: sha-256=:BASE64:` (RFC 9530)."
        )
    return digest


def read_announced_bytes(request: Request) -> int | None:
    """The Content-Length; None if the body comes in chunks."""
    length = request.headers.get("content-length")
    if length is None:
        return None
    announced = parse_whole(length, LARGEST_ANNOUNCED)
    if announced is None:
        raise InvalidRequest(f"Content-Length is {length[:40]!r}, not a number of bytes")
    return announced


async def receive_body(request: Request, blobs: BlobStore, *, digest: str, max_bytes: int) -> Incoming:
    """The body in a temporary file, its digest checked; the caller keeps or discards it."""
    with _disconnect_as_truncated():
        return await blobs.receive(
            request.stream(),
            max_bytes=max_bytes,
            expected=digest,
            announced_bytes=read_announced_bytes(request),
        )


async def read_body(request: Request) -> bytes:
    """A body of an announced length, to which the HTTP server holds it, in memory."""
    with _disconnect_as_truncated():
        return await request.body()


@contextmanager
def _disconnect_as_truncated() -> Iterator[None]:
    try:
        yield
    except ClientDisconnect:
        raise Truncated(
            "the connection broke before the whole body had arrived", hint="Send the file again."
        ) from None
