"""What clients report between assignment and result: heartbeats, failures, evaluations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from server.api.dependencies import Client, Coordinator
from server.api.documents import Number, RunId, make_router
from shared.schemas import Digest, Failure, Metrics, Progress, ProgressAnswer

router = make_router("training")
ScoredModel = Annotated[
    Digest | None, Query(description="the assignment's; refused if it is not the round's model any more")
]
"""Not in the body, of which a coordinator of before refuses what it does not know."""


@router.post("/runs/{run}/rounds/{n}/progress")
async def report_progress(
    run: RunId, n: Number, body: Progress, coordinator: Coordinator, client: Client
) -> ProgressAnswer:
    """A heartbeat. The answer says whether the result is still wanted."""
    now = coordinator.clock()
    if coordinator.presence.note(client):
        await coordinator.threads.run(coordinator.assignments.mark_returned, client)
    wanted = await coordinator.threads.run(coordinator.store.progress, run, n, client, body, now)
    if not wanted:
        return ProgressAnswer(proceed=False, reason="the round is closed for this client")
    coordinator.hub.announce_progress(run, {"round": n, "client": client, **body.model_dump(mode="json")})
    return ProgressAnswer(proceed=True)


@router.post("/runs/{run}/rounds/{n}/failure", status_code=204)
async def report_failure(
    run: RunId, n: Number, body: Failure, coordinator: Coordinator, client: Client
) -> None:
    """The client gives this attempt up. The round goes on for the others."""
    await coordinator.threads.run(coordinator.intake.report_failure, run, n, client, body)


@router.put("/runs/{run}/rounds/{n}/metrics", status_code=204)
async def submit_metrics(
    run: RunId,
    n: Number,
    body: Metrics,
    coordinator: Coordinator,
    client: Client,
    model: ScoredModel = None,
) -> None:
    """What the round's model scored on this client's own test set. The same again is fine."""
    await coordinator.threads.run(coordinator.intake.accept_evaluation, run, n, client, body, model)
    coordinator.hub.announce(run)
