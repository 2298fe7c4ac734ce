"""What clients tell between assignment and result: heartbeats, failures, evaluations."""

from __future__ import annotations

from fastapi import APIRouter

from server.api.documents import Number, RunId
from server.coordinator import Client, Here
from server.database.step.facts import FailureFacts
from server.lifecycle.events import FailureReported
from shared.schemas import Failure, Metrics, Progress, ProgressAnswer

router = APIRouter(tags=["training"])


@router.post("/runs/{run}/rounds/{n}/progress")
async def progress(run: RunId, n: Number, body: Progress, here: Here, client: Client) -> ProgressAnswer:
    """A heartbeat. The answer says whether the result is still wanted."""
    wanted = await here.threads.run(here.store.progress, run, n, client, body, here.clock())
    if not wanted:
        return ProgressAnswer(proceed=False, reason="the round is closed for this client")
    here.hub.heartbeat(run, {"round": n, "client": client, **body.model_dump(mode="json")})
    return ProgressAnswer(proceed=True)


@router.post("/runs/{run}/rounds/{n}/failure", status_code=204)
async def failure(run: RunId, n: Number, body: Failure, here: Here, client: Client) -> None:
    """The client gives this attempt up. The round goes on for the others."""
    event = FailureReported(client, n, body.attempt, body.reason)
    await here.commit(run, event, actor=client, facts=FailureFacts(body.code))


@router.put("/runs/{run}/rounds/{n}/metrics", status_code=204)
async def metrics(run: RunId, n: Number, body: Metrics, here: Here, client: Client) -> None:
    """What the round's model scored on this client's own test set. The same again is fine."""
    await here.threads.run(here.store.add_evaluation, run, n, client, body, actor=client, now=here.clock())
    here.hub.announce(run)
