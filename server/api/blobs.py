"""Models to download, initial weights to upload: immutable files named by their SHA-256."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from server.api.dependencies import Anyone, Coordinator, Operator
from server.api.documents import DigestInPath, make_router
from server.api.uploads import UPLOAD_BODY, read_announced_bytes, read_announced_digest, receive_body
from server.blobs import Incoming
from server.blobs.cache import BLOB_BYTES
from server.coordinator import Coordinator as Parts
from server.web.ranges import choose_range
from server.web.read_notes import Note
from server.web.security import KnownClient, Person
from shared.problems import DigestMismatch, Forbidden, StorageUnavailable
from shared.schemas import UserRole
from shared.wire.digests import format_content_digest

router = make_router("blobs")

MEDIA_TYPE = "application/vnd.safetensors"
PIECE_BYTES = 2**20
PARTIAL = 206
ACCEL = "X-Accel-Redirect"
_BINARY = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", **_BINARY},
    206: {"description": "The part that the Range header asks for", **_BINARY},
    304: {"description": "The file has not changed: it never does"},
}


@router.get("/blobs/{sha256}", responses=RESPONSES, response_class=Response)
@router.head("/blobs/{sha256}", responses=RESPONSES, response_class=Response)
async def download(
    sha256: DigestInPath, request: Request, coordinator: Coordinator, owner: Anyone
) -> Response:
    """A model or server state of a run in which the client is enrolled; for an operator of all runs, any
    file. Takes Range and If-None-Match."""
    client = owner.client if isinstance(owner, KnownClient) else None
    if isinstance(owner, Person):
        await _check_person(coordinator, owner, sha256, request)
    headers = _name_file(sha256)
    blob, size = await _find(coordinator, sha256, client)
    with contextlib.ExitStack() as unless_streamed:  # closes the file
        if not isinstance(blob, bytes):
            unless_streamed.callback(blob.close)
        if _has_already(request, sha256):
            return Response(status_code=304, headers=headers)
        start, stop, status = choose_range(request, size, sha256)
        headers |= _describe(sha256, start, stop, size, status)
        if request.method == "HEAD":
            return Response(None, status, headers, MEDIA_TYPE)
        coordinator.telemetry.sent.inc(stop - start)
        if isinstance(blob, bytes):
            return Response(blob[start:stop], status, headers, MEDIA_TYPE)
        if status != PARTIAL and (place := _find_for_nginx(coordinator, request, sha256)) is not None:
            return Response(None, status, _name_file(sha256) | {ACCEL: place}, MEDIA_TYPE)
        unless_streamed.pop_all()
    return StreamingResponse(_read_pieces(coordinator, blob, start, stop), status, headers, MEDIA_TYPE)


def _find_for_nginx(coordinator: Coordinator, request: Request, digest: str) -> str | None:
    """Where an nginx in front finds the file, which it sends in this process's place.

    None: it is sent from here, as it is to who does not come through a proxy.
    """
    prefix = coordinator.settings.accel_redirect
    if prefix is None or "x-forwarded-for" not in request.headers:
        return None
    return prefix + coordinator.blobs.path(digest).relative_to(coordinator.blobs.folder).as_posix()


def answer_from_memory(coordinator: Parts, client: str, digest: str) -> Response | None:
    """What :func:`download` answers to who asks for the whole of a small file that was read before.

    None: it was not, or the client has to be looked up. ``server.api.direct`` asks without FastAPI.
    """
    blob = coordinator.blob_cache.get(digest) if coordinator.grants.covers(client, digest) else None
    if blob is None:
        return None
    size = len(blob)
    coordinator.telemetry.sent.inc(size)
    return Response(blob, 200, _name_file(digest) | _describe(digest, 0, size, size, 200), MEDIA_TYPE)


async def _check_person(coordinator: Coordinator, person: Person, digest: str, request: Request) -> None:
    """An operator of some runs gets their models; noted are who reads whose file, and who is refused."""
    threads, store = coordinator.threads, coordinator.store
    if not person.may(UserRole.OPERATOR, None):
        runs = person.runs or frozenset()
        if not person.role.includes(UserRole.OPERATOR) or not await threads.run(
            store.is_model_of, runs, digest
        ):
            await coordinator.read_notes.require_right(person, UserRole.OPERATOR, None, request)
    of = await threads.run(store.client_of_update, digest)
    run, client = of if of is not None else (None, None)
    note = Note("read", person.actor, "/api/v1/blobs/{sha256}", run, client, (("digest", digest),))
    await coordinator.read_notes.add(note)


def _name_file(digest: str) -> dict[str, str]:
    return {
        "ETag": f'"{digest}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
    }


def _describe(digest: str, start: int, stop: int, size: int, status: int) -> dict[str, str]:
    length = {"Content-Length": str(stop - start)}
    if status == PARTIAL:
        return {**length, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return {**length, "Content-Digest": format_content_digest(digest)}


async def _find(coordinator: Coordinator, digest: str, client: str | None) -> tuple[bytes | BinaryIO, int]:
    """The bytes of a small blob, or the open file of a large one for the caller to close; and its size.

    From memory come the models of assignments alone: what was deleted is not read any more.
    """
    granted = client is not None and coordinator.grants.covers(client, digest)
    blob = coordinator.blob_cache.get(digest) if granted else None
    if blob is not None:
        return blob, len(blob)
    # read whole at first, which takes a while if it is large
    run = coordinator.threads.run if coordinator.integrity.has_seen(digest) else coordinator.threads.run_long
    found, size = await run(_open, coordinator, digest, None if granted else client)
    if client is not None and isinstance(found, bytes):
        coordinator.blob_cache[digest] = found
    return found, size


def _open(coordinator: Coordinator, digest: str, ask_for: str | None) -> tuple[bytes | BinaryIO, int]:
    if ask_for is not None and not coordinator.store.blob_readable(ask_for, digest):
        raise Forbidden(
            f"client {ask_for!r} may not read blob {digest}, or there is none",
            hint="A client reads the models and the broadcast state of the runs in which it is enrolled.",
        )
    file = _open_intact(coordinator, digest)
    size = os.fstat(file.fileno()).st_size
    if size > BLOB_BYTES:
        return file, size
    with file:
        return file.read(), size


def _open_intact(coordinator: Coordinator, digest: str) -> BinaryIO:
    """The file, which this process has read and compared once since its last change."""
    if coordinator.blobs.exists(digest) or coordinator.store.is_recorded(digest):
        fault = coordinator.faults.find(digest)
        if fault is not None:
            what = f"the stored file {digest} {fault}"
            raise StorageUnavailable(what, public=what)
    return coordinator.blobs.open(digest)


def _has_already(request: Request, digest: str) -> bool:
    wanted = request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
    return f'"{digest}"' in tags or "*" in tags


async def _read_pieces(
    coordinator: Coordinator, file: BinaryIO, start: int, stop: int
) -> AsyncIterator[bytes]:
    """In constant memory; closed also when the client goes away."""
    try:
        while start < stop:
            wanted = min(PIECE_BYTES, stop - start)
            piece = await coordinator.threads.run_long(os.pread, file.fileno(), wanted, start)
            if not piece:
                return  # the connection is closed short of Content-Length: the client knows
            start += len(piece)
            yield piece
    finally:
        file.close()


@router.put("/blobs/{sha256}", status_code=204, openapi_extra=UPLOAD_BODY)
async def upload(sha256: DigestInPath, request: Request, coordinator: Coordinator, _actor: Operator) -> None:
    """Upload initial weights, to be named in ``POST /runs``. Unused, they are deleted after a day."""
    digest = read_announced_digest(request)
    if digest != sha256:
        raise DigestMismatch(f"the address names {sha256}, the header Content-Digest {digest}")
    coordinator.space.check(None, read_announced_bytes(request) or 0)
    limit = coordinator.settings.max_update_bytes
    incoming = await receive_body(request, coordinator.blobs, digest=digest, max_bytes=limit)
    await coordinator.threads.run_long(_keep, coordinator, incoming)


def _keep(coordinator: Coordinator, incoming: Incoming) -> None:
    try:
        coordinator.blobs.keep(incoming)
    finally:
        coordinator.blobs.discard(incoming)
    coordinator.faults.mend(incoming.digest)
