"""Models to download, initial weights to upload: immutable files named by their SHA-256."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from server.api.documents import DigestInPath
from server.api.updates import BODY, announced_digest, received
from server.blobs import Incoming
from server.blobs.cache import BLOB_BYTES
from server.coordinator import Admin, ClientOrAdmin, Coordinator, Here
from server.web.ranges import wanted_range
from shared.problems import DigestMismatch, Forbidden
from shared.wire.digests import format_content_digest

router = APIRouter(tags=["blobs"])

MEDIA_TYPE = "application/vnd.safetensors"
PIECE_BYTES = 2**20
PARTIAL = 206
_BINARY = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", **_BINARY},
    206: {"description": "The part that the Range header asked for", **_BINARY},
    304: {"description": "The file has not changed: it never does"},
}


@router.get("/blobs/{sha256}", responses=RESPONSES, response_class=Response)
@router.head("/blobs/{sha256}", responses=RESPONSES, response_class=Response)
async def download(sha256: DigestInPath, request: Request, here: Here, client: ClientOrAdmin) -> Response:
    """A model or server state of a run in which the client is enrolled. Takes Range and If-None-Match."""
    headers = {
        "ETag": f'"{sha256}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
    }
    blob, size = await _found(here, sha256, client)
    with contextlib.ExitStack() as unless_streamed:
        if not isinstance(blob, bytes):
            unless_streamed.callback(blob.close)
        if _has_it(request, sha256):
            return Response(status_code=304, headers=headers)
        start, stop, status = wanted_range(request, size, sha256)
        headers |= _about(sha256, start, stop, size, status)
        if request.method == "HEAD":
            return Response(None, status, headers, MEDIA_TYPE)
        here.telemetry.sent.inc(stop - start)
        if isinstance(blob, bytes):
            return Response(blob[start:stop], status, headers, MEDIA_TYPE)
        unless_streamed.pop_all()
    return StreamingResponse(_pieces(here, blob, start, stop), status, headers, MEDIA_TYPE)


def _about(digest: str, start: int, stop: int, size: int, status: int) -> dict[str, str]:
    length = {"Content-Length": str(stop - start)}
    if status == PARTIAL:
        return {**length, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return {**length, "Content-Digest": format_content_digest(digest)}


async def _found(here: Coordinator, digest: str, client: str | None) -> tuple[bytes | BinaryIO, int]:
    """A small blob's bytes, or a large one's file to be closed by the caller; and its size."""
    granted = client is None or here.grants.covers(client, digest)
    blob = here.blob_cache.get(digest) if granted else None
    if blob is not None:
        return blob, len(blob)
    found, size = await here.threads.run(_open, here, digest, None if granted else client)
    if isinstance(found, bytes):
        here.blob_cache[digest] = found
    return found, size


def _open(here: Coordinator, digest: str, ask_for: str | None) -> tuple[bytes | BinaryIO, int]:
    if ask_for is not None and not here.store.blob_readable(ask_for, digest):
        raise Forbidden(
            f"client {ask_for!r} may not read blob {digest}, or there is none",
            hint="A client reads the models and the broadcast state of the runs in which it is enrolled.",
        )
    file = here.blobs.open(digest)
    size = os.fstat(file.fileno()).st_size
    if size > BLOB_BYTES:
        return file, size
    with file:
        return file.read(), size


def _has_it(request: Request, digest: str) -> bool:
    wanted = request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
    return f'"{digest}"' in tags or "*" in tags


async def _pieces(here: Coordinator, file: BinaryIO, start: int, stop: int) -> AsyncIterator[bytes]:
    """In constant memory; closed also when the client goes away."""
    try:
        while start < stop:
            wanted = min(PIECE_BYTES, stop - start)
            piece = await here.threads.run_long(os.pread, file.fileno(), wanted, start)
            if not piece:
                return  # the connection is closed short of Content-Length: the client knows
            start += len(piece)
            yield piece
    finally:
        file.close()


@router.put("/blobs/{sha256}", status_code=204, openapi_extra=BODY)
async def upload(sha256: DigestInPath, request: Request, here: Here, _admin: Admin) -> None:
    """Upload initial weights, to be named in ``POST /runs``. Unused, they are deleted after a day."""
    digest = announced_digest(request)
    if digest != sha256:
        raise DigestMismatch(f"the address names {sha256}, the header Content-Digest {digest}")
    incoming = await received(here, request, digest, here.settings.max_update_bytes)
    await here.threads.run_long(_keep, here, incoming)


def _keep(here: Coordinator, incoming: Incoming) -> None:
    try:
        here.blobs.keep(incoming)
    finally:
        here.blobs.discard(incoming)
