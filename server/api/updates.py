"""Uploads: streamed to the disk, checked, validated, kept, and only then accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect

from server.api.documents import Number, RunId, as_json
from server.blobs import Incoming
from server.coordinator import Client, Coordinator, Here
from server.database.step.facts import UpdateFacts
from server.lifecycle.events import UpdateReceived
from server.lifecycle.machine import decide
from server.runs.layout import Expected
from shared.problems import (
    Conflict,
    InvalidRequest,
    NotFound,
    Problem,
    Truncated,
    UnsupportedMediaType,
    UpdateRefused,
)
from shared.schemas import Receipt, UpdateReport
from shared.wire.digests import parse_content_digest
from shared.wire.validation import validate

router = APIRouter(tags=["updates"])

MEDIA_TYPES = ("application/vnd.safetensors", "application/octet-stream")
BODY: dict[str, Any] = {
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


SMALL_BYTES = 2**20
"""Up to here a body is read before it is asked whether it is wanted: all the rest is then one thread's."""


@dataclass(frozen=True)
class _Offer:
    """An update as it is announced, and what one of its run must look like."""

    run: str
    event: UpdateReceived
    report: UpdateReport
    digest: str
    expected: Expected


@router.put("/runs/{run}/rounds/{n}/update", openapi_extra=BODY, response_model=Receipt)
async def upload(
    run: RunId,
    n: Number,
    report: Annotated[UpdateReport, Query()],
    request: Request,
    here: Here,
    client: Client,
) -> Response:
    """Upload the round's update. Safe to repeat: the same file again is answered with the same receipt."""
    async with _recorded(here, run, n, client):
        digest = announced_digest(request)
        expected = await here.expected(run)
        offer = _Offer(run, UpdateReceived(client, n, report.attempt), report, digest, expected)
        announced = _announced_bytes(request)
        if announced is not None and announced <= SMALL_BYTES:
            body = await _whole(request)
            return as_json(await here.threads.run(_accept_small, here, offer, body, announced))
        if (receipt := await here.threads.run(_early_answer, here, offer)) is not None:
            return as_json(receipt)
        incoming = await received(here, request, digest, expected.max_bytes)
        return as_json(await here.threads.run_long(_accept, here, offer, incoming))


@asynccontextmanager
async def _recorded(here: Coordinator, run: str, n: int, client: str) -> AsyncIterator[None]:
    """Every refusal of an upload is an entry of the event log."""
    try:
        yield
    except Problem as problem:
        if 400 <= problem.status < 500 and not isinstance(problem, NotFound):
            kind = "update_refused" if isinstance(problem, Conflict) else "update_invalid"
            detail = {"code": problem.code, "detail": problem.detail}
            await here.record(kind, run=run, actor=client, detail=detail, round=n, client=client)
            here.presence.forget(client)
        raise


def announced_digest(request: Request) -> str:
    """The SHA-256 that the headers announce, hexadecimal; it is required, or a cut body could not be told."""
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


def _early_answer(here: Coordinator, offer: _Offer) -> Receipt | None:
    """The receipt of the same update sent before, or a refusal, or None: go on and look at the body."""
    state = here.store.run_state(offer.run)
    try:
        decide(state, offer.event, here.clock())
    except UpdateRefused:
        if (receipt := _same_before(here, offer)) is None:
            raise
        return receipt
    enrolled = state.enrolment(offer.event.client)
    if enrolled is not None and offer.report.examples != enrolled.examples:
        raise InvalidRequest(
            f"the update was trained on {offer.report.examples} examples, "
            f"but {enrolled.client} is enrolled with {enrolled.examples}: the size that its weight goes by",
            hint="Leave the run and enrol anew when the data have changed.",
        )
    return None


def _same_before(here: Coordinator, offer: _Offer) -> Receipt | None:
    try:
        receipt = here.store.receipt(offer.run, offer.event.round, offer.event.client)
    except NotFound:
        return None
    return receipt if (receipt.digest, receipt.attempt) == (offer.digest, offer.event.attempt) else None


async def received(here: Coordinator, request: Request, digest: str, limit: int) -> Incoming:
    """The body on the disk, under a temporary name, its digest checked."""
    with _whole_or_truncated():
        return await here.blobs.receive(
            request.stream(),
            max_bytes=min(limit, here.settings.max_update_bytes),
            expected=digest,
            announced_bytes=_announced_bytes(request),
        )


async def _whole(request: Request) -> bytes:
    """A body of an announced length, which the HTTP server holds it to, in memory."""
    with _whole_or_truncated():
        return await request.body()


def _announced_bytes(request: Request) -> int | None:
    length = request.headers.get("content-length")
    return int(length) if length is not None else None


@contextmanager
def _whole_or_truncated() -> Iterator[None]:
    try:
        yield
    except ClientDisconnect:
        raise Truncated(
            "the connection broke before the whole body had come", hint="Send the file again."
        ) from None


def _accept_small(here: Coordinator, offer: _Offer, body: bytes, announced: int) -> Receipt:
    """All that happens to a small update, in the same order as to a large one."""
    if (receipt := _early_answer(here, offer)) is not None:
        return receipt
    limit = min(offer.expected.max_bytes, here.settings.max_update_bytes)
    incoming = here.blobs.take(body, max_bytes=limit, expected=offer.digest, announced_bytes=announced)
    return _accept(here, offer, incoming)


def _accept(here: Coordinator, offer: _Offer, incoming: Incoming) -> Receipt:
    """Validate, make durable, and only then commit the transaction that names the file."""
    event, report = offer.event, offer.report
    try:
        validate(incoming.path, offer.expected.layout)
        here.blobs.keep(incoming)
    finally:
        here.blobs.discard(incoming)
    here.integrity.remember(here.blobs.path(incoming.digest), incoming.digest)
    facts = UpdateFacts(
        digest=incoming.digest,
        bytes=incoming.bytes,
        steps=report.steps,
        loss=report.loss,
        seconds=report.seconds,
    )
    now = here.clock()
    decision = here.rounds.commit(offer.run, event, actor=event.client, facts=facts, now=now)
    if not decision.effects:  # the same update had come at the same time by another connection
        return here.store.receipt(offer.run, event.round, event.client)
    here.telemetry.updates.inc()
    here.telemetry.received.inc(incoming.bytes)
    return Receipt(
        run=offer.run,
        round=event.round,
        attempt=event.attempt,
        client=event.client,
        digest=incoming.digest,
        bytes=incoming.bytes,
        received_at=now,
    )


@router.get("/runs/{run}/rounds/{n}/receipt")
async def receipt(run: RunId, n: Number, here: Here, client: Client) -> Receipt:
    """What became of this client's own update: its digest, and after the round its row of the ledger."""
    return await here.threads.run(here.store.receipt, run, n, client)
