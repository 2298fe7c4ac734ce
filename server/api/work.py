"""The long poll: what a client should do now, over all its runs."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.api.documents import as_json
from server.coordinator import Client, Coordinator, Here
from server.lifecycle.events import AssignmentTaken, ClientSeen
from server.wakeups.hub import Waiter
from shared.problems import Conflict
from shared.schemas import Assignment, Train, Wait

router = APIRouter(tags=["work"])

LONGEST_SECONDS = 60.0
TRIES = 5
CLOSING = "the coordinator is shutting down"
Seconds = Annotated[float, Query(ge=0, le=LONGEST_SECONDS, description="seconds to wait for an assignment")]


@router.get("/work", response_model=Assignment)
async def work(here: Here, client: Client, wait: Seconds = 0.0) -> Response:
    """The next assignment; if there is none yet, holds the request for up to ``wait`` seconds."""
    end = time.monotonic() + wait
    if here.presence.note(client):
        await here.threads.run(_back, here, client)
    with here.hub.polling(client) as waiter:  # before the query: nothing that is committed after it is missed
        while True:
            if (assignment := await here.threads.run(_next, here, client)) is not None:
                if isinstance(assignment, Train):
                    here.grants.grant(client, (assignment.model, assignment.broadcast))
                return as_json(assignment)
            left = end - time.monotonic()
            if left <= 0 or not await _woken(here, waiter, left):
                break
    # asked only now: most polls end with an assignment, and the sentence is of the moment that it is read
    reason = CLOSING if here.hub.closed else await here.threads.run(_waiting, here, client)
    return as_json(Wait(reason=reason))


async def _woken(here: Coordinator, waiter: Waiter, seconds: float) -> bool:
    """Whether to ask the database again before the time is over."""
    if here.hub.recheck_seconds is None:
        return await waiter.wait(seconds)
    # Several coordinators: should their relay be down, look again every now and then, not all at once.
    pause = here.hub.recheck_seconds * random.uniform(0.8, 1.2)  # noqa: S311
    return await waiter.wait(min(seconds, pause)) or (pause < seconds and not here.hub.closed)


def _back(here: Coordinator, client: str) -> None:
    """A client that had missed a deadline is back."""
    for run in here.store.away_in(client):
        with contextlib.suppress(Conflict):  # another poll of it was faster, or the run has ended
            here.rounds.commit(run, ClientSeen(client), actor=client)


def _next(here: Coordinator, client: str) -> Assignment | None:
    """On a thread. An assignment to train is noted as taken before it is given."""
    for _ in range(TRIES):
        assignment = here.store.work_for(client)
        if not isinstance(assignment, Train):
            return assignment
        try:
            _take(here, client, assignment)
        except Conflict:
            continue  # the round was closed in between: ask again
        return assignment
    return None  # the round is changing all the time: the next change wakes the client


def _take(here: Coordinator, client: str, assignment: Train) -> None:
    event = AssignmentTaken(client, assignment.round, assignment.attempt)
    here.rounds.commit(assignment.run, event, actor=client)


def _waiting(here: Coordinator, client: str) -> str:
    return here.store.waiting_for(client, here.clock())
