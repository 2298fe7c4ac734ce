"""What a run's assistant answers about a round."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from server.api.dependencies import Client, Coordinator
from server.api.documents import Number, RunId, make_router
from server.api.uploads import UPLOAD_BODY, read_announced_bytes, read_announced_digest, receive_body
from shared.schemas import AssistReport, Failure

router = make_router("assistance")


@router.put("/runs/{run}/rounds/{n}/assistance", status_code=204, openapi_extra=UPLOAD_BODY)
async def answer(
    run: RunId,
    n: Number,
    report: Annotated[AssistReport, Query()],
    request: Request,
    coordinator: Coordinator,
    client: Client,
) -> None:
    """The assistant's answer: a model, or what a weighting has learned. The same again is fine."""
    threads, answers = coordinator.threads, coordinator.answers
    digest, announced = read_announced_digest(request), read_announced_bytes(request)
    wanted = await threads.run_long(answers.check, (run, n, report.attempt), client, announced)
    incoming = await receive_body(request, coordinator.blobs, digest=digest, max_bytes=wanted.max_bytes)
    await threads.run_long(answers.accept, wanted, report, incoming)


@router.post("/runs/{run}/rounds/{n}/assistance/failure", status_code=204)
async def report_failure(
    run: RunId, n: Number, body: Failure, coordinator: Coordinator, client: Client
) -> None:
    """The assistant will not answer. The round goes on without it."""
    await coordinator.threads.run(coordinator.answers.note_fault, (run, n, body.attempt), client, body)
