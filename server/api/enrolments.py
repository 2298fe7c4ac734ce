"""Clients in a run: enrol, be approved or refused, submit the discrepancy, decline, leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from server.api.dependencies import Client, Coordinator, Operator
from server.api.documents import ClientId, RunId, make_router
from shared.schemas import (
    ApprovalRequest,
    ControlRequest,
    DeclineRequest,
    DiscrepancySubmission,
    EnrolmentAnswer,
    EnrolmentRequest,
    Role,
)

router = make_router("enrolments")
NO_REASON = ControlRequest()
WouldBe = Annotated[
    Role, Query(description="what this client would have been; counts unless it has enrolled")
]
"""Not in the body, of which a coordinator of before refuses what it does not know."""


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
    layout = await coordinator.layouts.find(run)
    await coordinator.threads.run(coordinator.enrolments.submit_discrepancy, run, client, body, layout)


@router.post("/runs/{run}/enrolments/{client}/approve", status_code=204)
async def approve(
    run: RunId, client: ClientId, body: ApprovalRequest, coordinator: Coordinator, actor: Operator
) -> None:
    """Let a client in whose size waits for approval. The size must be the one that it declares."""
    await coordinator.threads.run(coordinator.enrolments.approve, run, client, body.examples, actor)


@router.post("/runs/{run}/enrolments/{client}/refuse", status_code=204)
async def refuse(
    run: RunId, client: ClientId, coordinator: Coordinator, actor: Operator, body: ControlRequest = NO_REASON
) -> None:
    """Take a client out of the run, or keep it out. If it enrols again, it waits for approval."""
    await coordinator.threads.run(coordinator.enrolments.refuse, run, client, body.reason, actor)


@router.post("/runs/{run}/decline", status_code=204)
async def decline(
    run: RunId, body: DeclineRequest, coordinator: Coordinator, client: Client, role: WouldBe = Role.TRAINER
) -> None:
    """Say why this client does not take part in the run, or no longer, so that the page can show it."""
    await coordinator.threads.run(coordinator.enrolments.decline, run, client, body, role)


@router.delete("/runs/{run}/enrolments/me", status_code=204)
async def leave(run: RunId, coordinator: Coordinator, client: Client) -> None:
    """Leave a run; after its end, confirm that the client has seen it."""
    await coordinator.threads.run(coordinator.enrolments.leave, run, client)
