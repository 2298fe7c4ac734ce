"""Uploads of updates, and their receipts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ValidationError

from server.api.dependencies import Client, Coordinator
from server.api.documents import Number, RunId, as_json, make_router
from server.api.uploads import (
    UPLOAD_BODY,
    read_announced_bytes,
    read_announced_digest,
    read_body,
    receive_body,
)
from server.coordinator import Coordinator as Parts
from server.runs.client_views import receipt_for
from server.runs.intake import Offer
from shared.problems import InvalidRequest, NotFound, Problem
from shared.schemas import Receipt, SecureAnswer, UpdateReport

router = make_router("updates")

STEP_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}
SMALL_BYTES = 2**20
"""Up to this size the body is read before the update is checked: the rest is then the work of one thread."""


@router.put("/runs/{run}/rounds/{n}/update", openapi_extra=UPLOAD_BODY, response_model=Receipt)
async def upload(
    run: RunId,
    n: Number,
    report: Annotated[UpdateReport, Query()],
    request: Request,
    coordinator: Coordinator,
    client: Client,
) -> Response:
    """Upload the round's update. Safe to repeat: the same file again is answered with the same receipt."""
    return await take_update(request, coordinator, run, n, report, client)


async def take_update(
    request: Request, coordinator: Parts, run: str, n: int, report: UpdateReport, client: str
) -> Response:
    """What :func:`upload` answers; ``server.api.direct`` asks for it without FastAPI."""
    threads, intake = coordinator.threads, coordinator.intake
    async with _record_refusals(coordinator, run, n, client):
        digest = read_announced_digest(request)
        announced = read_announced_bytes(request)
        layout = await coordinator.layouts.find(run)
        offer = Offer(run, n, client, report, digest, layout, announced)
        if announced is not None and announced <= SMALL_BYTES:
            body = await read_body(request)
            receipt = await threads.run(intake.accept_small, offer, body, announced)
        elif (known := await threads.run(intake.check, offer)) is not None:
            return as_json(known)
        else:
            limit = intake.limit_bytes(offer)
            incoming = await receive_body(request, coordinator.blobs, digest=digest, max_bytes=limit)
            receipt = await threads.run_long(intake.accept, offer, incoming)
    coordinator.assignments.note_update(client, run, n, receipt.attempt)
    return as_json(receipt)


@router.post("/runs/{run}/rounds/{n}/step", status_code=204, response_class=Response, openapi_extra=STEP_BODY)
async def answer_step(
    run: RunId, n: Number, request: Request, coordinator: Coordinator, client: Client
) -> Response:
    """Answer the step of a secure sum that is this client's turn. Safe to repeat."""
    return await take_answer(request, coordinator, run, n, client)


async def take_answer(request: Request, coordinator: Parts, run: str, n: int, client: str) -> Response:
    """What :func:`answer_step` answers; ``server.api.direct`` asks for it without FastAPI."""
    answer = _parse_answer(await read_body(request))
    await coordinator.threads.run(coordinator.intake.answer_step, run, n, client, answer)
    return Response(status_code=204)


def _parse_answer(body: bytes) -> SecureAnswer:
    """As JSON: FastAPI would parse it first, and bytes in base64 are known in JSON only."""
    try:
        return SecureAnswer.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(
            f"the answer is none to a step of a secure sum: {error.errors(include_input=False)[0]['msg']}",
            hint="Answer what the assignment asks for, as the worker of this version does.",
        ) from error


@asynccontextmanager
async def _record_refusals(coordinator: Parts, run: str, n: int, client: str) -> AsyncIterator[None]:
    try:
        yield
    except Problem as problem:
        if 400 <= problem.status < 500 and not isinstance(problem, NotFound):
            await coordinator.threads.run(coordinator.intake.record_refusal, run, n, client, problem)
            coordinator.presence.forget(client)
        raise


@router.get("/runs/{run}/rounds/{n}/receipt")
async def show_receipt(run: RunId, n: Number, coordinator: Coordinator, client: Client) -> Receipt:
    """What became of this client's own update: its digest, and after the round its row of the ledger."""
    store, threads = coordinator.store, coordinator.threads
    receipt = await threads.run(store.receipt, run, n, client)
    return receipt_for(client, receipt, await threads.run(store.round_view, run, n, receipt.attempt))
