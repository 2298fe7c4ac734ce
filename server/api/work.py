"""The long poll: what a client should do now, over all its runs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Query, Request, Response

from server.api.dependencies import Client, Coordinator
from server.api.documents import as_json, make_router
from server.coordinator import Coordinator as Parts
from server.wakeups.hub import Waiter
from shared.problems import RevokedToken
from shared.schemas import Assignment, Evaluate, SecureStep, Train, Wait

router = make_router("work")

LONGEST_SECONDS = 60.0
CONFIRM_SECONDS = 1.5
"""By then this process has found what others had committed before a poll began."""
SHUTTING_DOWN = "the coordinator is shutting down"
Seconds = Annotated[float, Query(ge=0, le=LONGEST_SECONDS, description="seconds to wait for an assignment")]


@router.get("/work", response_model=Assignment)
async def work(request: Request, coordinator: Coordinator, client: Client, wait: Seconds = 0.0) -> Response:
    """The next assignment; if there is none yet, holds the request for up to ``wait`` seconds."""
    with coordinator.hub.polling(client) as waiter:
        async with _noticing_end(request, waiter):
            return as_json(await find_assignment(coordinator, client, waiter, wait))


async def find_assignment(coordinator: Parts, client: str, waiter: Waiter, wait: float) -> Assignment:
    """What the client should do, once there is something within ``wait`` seconds.

    The ``waiter`` has its place in the hub already: nothing that is committed after the query is missed.
    Raises :class:`RevokedToken` when the token was revoked meanwhile.
    """
    end = time.monotonic() + wait
    threads, hub, assignments = coordinator.threads, coordinator.hub, coordinator.assignments
    if coordinator.presence.note(client) and not assignments.is_present(client):
        await threads.run(assignments.mark_returned, client)
    is_first = True
    while True:
        is_remembered = assignments.is_idle(client)
        assignment = None if is_remembered else await coordinator.polls.get(client)
        _check_access(waiter)
        if assignment is not None:
            if isinstance(assignment, Train | SecureStep):
                coordinator.grants.grant(client, (assignment.model, assignment.broadcast))
            elif isinstance(assignment, Evaluate):
                coordinator.grants.grant(client, (assignment.model, *assignment.shadows.values()))
            return assignment
        left = end - time.monotonic()
        if left <= 0 or not await _wait_for_news(coordinator, waiter, left, is_first and is_remembered):
            break
        is_first = False
    _check_access(waiter)
    # asked only now: most polls end with an assignment, and the reason must be of the moment it is read
    if hub.closed:
        return Wait(reason=SHUTTING_DOWN)
    reason = assignments.recall_reason(client) or await threads.run(assignments.explain_wait, client)
    return Wait(reason=reason)


def _check_access(waiter: Waiter) -> None:
    if waiter.is_refused:
        raise RevokedToken("the token was revoked meanwhile", hint="Ask the coordinator's operator.")


@asynccontextmanager
async def _noticing_end(request: Request, waiter: Waiter) -> AsyncIterator[None]:
    """The waiter leaves when the client hangs up: a poll that is cut on its way holds no place here."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        waiter.leave()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _wait_for_news(coordinator: Parts, waiter: Waiter, seconds: float, is_from_memory: bool) -> bool:
    """Whether to look again before the time is over."""
    if coordinator.hub.recheck_seconds is None:
        return await waiter.wait(seconds)
    # Several coordinators: should their relay be down, look again every now and then, not all at once.
    pause = coordinator.hub.recheck_seconds * random.uniform(0.8, 1.2)  # noqa: S311
    if is_from_memory:  # it may have come here from another coordinator, with something to do since
        pause = CONFIRM_SECONDS
    return await waiter.wait(min(seconds, pause)) or (pause < seconds and not waiter.is_over)
