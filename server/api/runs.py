"""Runs: create, show, control."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from server.api.dependencies import Admin, Coordinator, Operator, Reader, ReadRuns, Viewer, ViewerOfAll
from server.api.documents import Number, RunId, as_json, make_router, name_next_page
from server.runs.client_views import round_for, run_for, summary_for
from shared.run_search import RunSearch
from shared.schemas import (
    ControlRequest,
    DeletedRun,
    Deletion,
    EvaluationView,
    RewindRequest,
    RoundView,
    RunChanges,
    RunRequest,
    RunSummary,
    RunView,
)

router = make_router("runs")
NO_REASON = ControlRequest()
Archived = Annotated[bool, Query(description="also those that were put away")]
Words = Annotated[
    str, Query(max_length=200, description="each is in the run's name, task, algorithm, weighting or tags")
]
State = Annotated[str, Query(max_length=40, description="the run's status")]
SoughtTag = Annotated[str, Query(max_length=40, description="one of the run's tags")]
Reason = Annotated[str, Query(max_length=2000, description="why; kept in the record")]
MOST_ROUNDS = 100
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="which attempt; otherwise the newest")]


@router.post("/runs", status_code=201)
async def create(body: RunRequest, coordinator: Coordinator, actor: Operator) -> RunView:
    """Create a run. Its initial weights are built from task and seed, or were uploaded beforehand."""
    await coordinator.threads.run_long(coordinator.control.create, body, actor)
    coordinator.hub.wake_everyone()
    for config in (body.config, body.config.make_twin()):
        if config is not None:
            coordinator.hub.announce(config.name)
    return await _read_view(coordinator, body.config.name)


async def _read_view(coordinator: Coordinator, run: str, reader: str | None = None) -> RunView:
    return await coordinator.threads.run(coordinator.store.run_view, run, coordinator.clock(), reader)


@router.get("/runs")
async def list_runs(
    coordinator: Coordinator,
    reader: Reader,
    only: ReadRuns,
    archived: Archived = False,
    search: Words = "",
    state: State = "",
    tag: SoughtTag = "",
) -> list[RunSummary]:
    """All runs, newest first but pinned ones before; those that were put away only if they are asked for."""
    found = await coordinator.threads.run(coordinator.store.runs, archived)
    found = found if only is None else [view for view in found if view.run in only]
    found = found if reader is None else [summary_for(reader, view) for view in found]
    return RunSearch(search, state, tag).find(found)


@router.get("/runs/{run}", response_model=RunView)
async def show_run(run: RunId, coordinator: Coordinator, reader: Reader) -> Response:
    """One run with its configuration, enrolments and current round; for a client, its own rows and sums."""
    view = await _read_view(coordinator, run, reader)
    return as_json(view if reader is None else run_for(reader, view))


@router.patch("/runs/{run}")
async def change(run: RunId, body: RunChanges, coordinator: Coordinator, actor: Operator) -> RunView:
    """Change a run's configuration where that touches no past round; the open one goes by it, too."""
    await coordinator.threads.run(coordinator.control.change, run, body, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/start")
async def start(run: RunId, coordinator: Coordinator, actor: Operator) -> RunView:
    """Start with the trainers that are ready, without waiting for more."""
    await coordinator.threads.run(coordinator.control.start, run, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/pause")
async def pause(
    run: RunId, coordinator: Coordinator, actor: Operator, body: ControlRequest = NO_REASON
) -> RunView:
    """Open no further round. The open one goes on collecting and may complete."""
    await coordinator.threads.run(coordinator.control.pause, run, body.reason, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/resume")
async def resume(run: RunId, coordinator: Coordinator, actor: Operator) -> RunView:
    """Go on after a pause."""
    await coordinator.threads.run(coordinator.control.resume, run, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/stop")
async def stop(
    run: RunId, coordinator: Coordinator, actor: Operator, body: ControlRequest = NO_REASON
) -> RunView:
    """End the run now. The open round is abandoned; the newest model stays."""
    await coordinator.threads.run(coordinator.control.stop, run, body.reason, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/rewind")
async def rewind(run: RunId, body: RewindRequest, coordinator: Coordinator, actor: Operator) -> RunView:
    """Go back to the model of an earlier round; the run goes on from there. Later rounds count no more."""
    await coordinator.threads.run_long(coordinator.control.rewind, run, body.round, body.reason, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/archive")
async def archive(run: RunId, coordinator: Coordinator, actor: Operator) -> RunView:
    """Put an ended run away: it is no longer listed, and otherwise as before."""
    await coordinator.threads.run(coordinator.removal.archive, run, True, actor)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/unarchive")
async def unarchive(run: RunId, coordinator: Coordinator, actor: Operator) -> RunView:
    """List the run again."""
    await coordinator.threads.run(coordinator.removal.archive, run, False, actor)
    return await _read_view(coordinator, run)


@router.delete("/runs/{run}")
async def delete(run: RunId, coordinator: Coordinator, admin: Admin, reason: Reason = "") -> DeletedRun:
    """Delete an ended run for good, with the files that only it needs; the record that is kept of it."""
    return await coordinator.threads.run_long(coordinator.removal.delete, run, reason, admin)


@router.get("/deletions", dependencies=[ViewerOfAll])
async def list_deletions(coordinator: Coordinator) -> list[Deletion]:
    """The runs that were deleted, newest first."""
    return await coordinator.threads.run(coordinator.store.deletions)


@router.get("/deletions/{run}", dependencies=[Viewer])
async def show_deletion(run: RunId, coordinator: Coordinator) -> DeletedRun:
    """What is kept of a run that was deleted."""
    return await coordinator.threads.run(coordinator.store.deletion, run)


@router.get("/runs/{run}/rounds")
async def list_rounds(
    run: RunId,
    request: Request,
    response: Response,
    coordinator: Coordinator,
    reader: Reader,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="only rounds with a larger number")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_ROUNDS, description="how many rounds at most")] = MOST_ROUNDS,
) -> list[RoundView]:
    """Every attempt of a page of rounds with its ledger; for a client, its own row of it and sums.

    The header Link names the next page, if there is one.
    """
    last = after + limit
    found = await coordinator.threads.run(coordinator.store.rounds, run, after + 1, last + 1)
    if found and found[-1].round > last:
        name_next_page(request, response, after=last, limit=limit)
    shown = [view for view in found if view.round <= last]
    return shown if reader is None else [round_for(reader, view) for view in shown]


@router.get("/runs/{run}/rounds/{n}")
async def show_round(
    run: RunId, n: Number, coordinator: Coordinator, reader: Reader, attempt: Attempt = None
) -> RoundView:
    """One attempt of a round with its ledger and evaluations; for a client, its own row and sums."""
    view = await coordinator.threads.run(coordinator.store.round_view, run, n, attempt)
    return view if reader is None else round_for(reader, view)


@router.get("/runs/{run}/evaluations")
async def list_evaluations(run: RunId, coordinator: Coordinator, reader: Reader) -> list[EvaluationView]:
    """Every evaluation of the run's models, round 0 being the initial one; for a client, its own."""
    found = await coordinator.threads.run(coordinator.store.evaluations, run)
    return found if reader is None else [view for view in found if view.client == reader]
