"""Clients in a run: join, submit the discrepancy, decline, leave."""

from __future__ import annotations

from itertools import zip_longest

from fastapi import APIRouter

from server.api.documents import RunId
from server.coordinator import Client, Here
from server.database.step.facts import DiscrepancyFacts, EnrolmentFacts
from server.lifecycle.events import ClientDeclined, ClientEnrolled, ClientLeft, DiscrepancyReceived
from server.lifecycle.machine import Decision
from server.runs.layout import Expected
from shared.problems import ClassContractMismatch, Conflict
from shared.schemas import DeclineRequest, DiscrepancySubmission, EnrolmentAnswer, EnrolmentRequest

router = APIRouter(tags=["enrolments"])


@router.post("/runs/{run}/enrolments")
async def enrol(run: RunId, body: EnrolmentRequest, here: Here, client: Client) -> EnrolmentAnswer:
    """Join a run. The same again is answered the same."""
    expected = await here.expected(run)
    _check_contract(run, body, expected)
    event = ClientEnrolled(client, body.role, body.examples, body.index)
    decision = await here.commit(run, event, actor=client, facts=EnrolmentFacts(body.device))
    return _answer(decision, client)


def _answer(decision: Decision, client: str) -> EnrolmentAnswer:
    found = decision.run.enrolment(client)
    if found is None:
        raise Conflict(f"client {client!r} is not enrolled in {decision.run.id!r}")
    return EnrolmentAnswer(
        run=decision.run.id, client=client, role=found.role, status=found.status, index=found.index
    )


def _check_contract(run: str, body: EnrolmentRequest, expected: Expected) -> None:
    if body.task != expected.task:
        raise ClassContractMismatch(
            f"run {run!r} trains task {expected.task!r}, received {body.task!r}",
            hint="Start the worker with the run's task.",
        )
    for index, (theirs, ours) in enumerate(zip_longest(body.classes, expected.classes)):
        if theirs != ours:
            raise ClassContractMismatch(
                f"class {index} of run {run!r} is {ours!r}, received {theirs!r}",
                hint="Every client of a run declares the same classes in the same order.",
                classes=list(expected.classes),
            )


@router.put("/runs/{run}/discrepancy", status_code=204)
async def submit_discrepancy(run: RunId, body: DiscrepancySubmission, here: Here, client: Client) -> None:
    """Submit ``d_k``, once. The same value again is fine, another one is refused."""
    facts = DiscrepancyFacts(body.metric, body.value)
    await here.commit(run, DiscrepancyReceived(client), actor=client, facts=facts)


@router.post("/runs/{run}/decline", status_code=204)
async def decline(run: RunId, body: DeclineRequest, here: Here, client: Client) -> None:
    """Say why this client takes no part in the run, so that the page can show it."""
    await here.commit(run, ClientDeclined(client, body.reason), actor=client)


@router.delete("/runs/{run}/enrolments/me", status_code=204)
async def leave(run: RunId, here: Here, client: Client) -> None:
    """Leave a run; when it has ended, this confirms that its end was seen."""
    await here.commit(run, ClientLeft(client, "left by its own wish"), actor=client)
