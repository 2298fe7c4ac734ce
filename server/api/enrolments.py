"""Clients in a run: enrol, submit the discrepancy, decline, leave."""

from __future__ import annotations

from fastapi import APIRouter

from server.api.dependencies import Client, Coordinator
from server.api.documents import RunId
from shared.schemas import DeclineRequest, DiscrepancySubmission, EnrolmentAnswer, EnrolmentRequest

router = APIRouter(tags=["enrolments"])


@router.post("/runs/{run}/enrolments")
async def enrol(
    run: RunId, body: EnrolmentRequest, coordinator: Coordinator, client: Client
) -> EnrolmentAnswer:
    """Enrol in a run. Repeated, the answer is the same."""
    layout = await coordinator.layouts.find(run)
    return await coordinator.threads.run(coordinator.enrolments.enrol, run, client, body, layout)


@router.put("/runs/{run}/discrepancy", status_code=204)
async def submit_discrepancy(
    run: RunId, body: DiscrepancySubmission, coordinator: Coordinator, client: Client
) -> None:
    """Submit ``d_k``, once. The same value again is fine, another one is refused."""
    await coordinator.threads.run(coordinator.enrolments.submit_discrepancy, run, client, body)


@router.post("/runs/{run}/decline", status_code=204)
async def decline(run: RunId, body: DeclineRequest, coordinator: Coordinator, client: Client) -> None:
    """Say why this client does not take part in the run, or no longer, so that the page can show it."""
    await coordinator.threads.run(coordinator.enrolments.decline, run, client, body)


@router.delete("/runs/{run}/enrolments/me", status_code=204)
async def leave(run: RunId, coordinator: Coordinator, client: Client) -> None:
    """Leave a run; after its end, confirm that the client has seen it."""
    await coordinator.threads.run(coordinator.enrolments.leave, run, client)
