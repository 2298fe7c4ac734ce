"""Runs: create, show, control."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.api.dependencies import Admin, Coordinator, Viewer
from server.api.documents import Number, RunId, as_json
from shared.schemas import ControlRequest, EvaluationView, RoundView, RunRequest, RunSummary, RunView

router = APIRouter(tags=["runs"])
NO_REASON = ControlRequest()
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="which attempt; otherwise the newest")]


@router.post("/runs", status_code=201)
async def create(body: RunRequest, coordinator: Coordinator, admin: Admin) -> RunView:
    """Create a run. Its initial weights are built from task and seed, or were uploaded beforehand."""
    await coordinator.threads.run_long(coordinator.control.create, body, admin)
    coordinator.hub.wake_everyone()
    coordinator.hub.announce(body.config.name)
    return await _read_view(coordinator, body.config.name)


async def _read_view(coordinator: Coordinator, run: str) -> RunView:
    return await coordinator.threads.run(coordinator.store.run_view, run, coordinator.clock())


@router.get("/runs", dependencies=[Viewer])
async def list_runs(coordinator: Coordinator) -> list[RunSummary]:
    """All runs."""
    return list(await coordinator.threads.run(coordinator.store.runs))


@router.get("/runs/{run}", dependencies=[Viewer], response_model=RunView)
async def show_run(run: RunId, coordinator: Coordinator) -> Response:
    """One run with its configuration, enrolments and current round."""
    return as_json(await _read_view(coordinator, run))


@router.post("/runs/{run}/start")
async def start(run: RunId, coordinator: Coordinator, admin: Admin) -> RunView:
    """Start with the trainers that are ready, without waiting for more."""
    await coordinator.threads.run(coordinator.control.start, run, admin)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/pause")
async def pause(
    run: RunId, coordinator: Coordinator, admin: Admin, body: ControlRequest = NO_REASON
) -> RunView:
    """Open no further round. The open one goes on collecting and may complete."""
    await coordinator.threads.run(coordinator.control.pause, run, body.reason, admin)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/resume")
async def resume(run: RunId, coordinator: Coordinator, admin: Admin) -> RunView:
    """Go on after a pause."""
    await coordinator.threads.run(coordinator.control.resume, run, admin)
    return await _read_view(coordinator, run)


@router.post("/runs/{run}/stop")
async def stop(
    run: RunId, coordinator: Coordinator, admin: Admin, body: ControlRequest = NO_REASON
) -> RunView:
    """End the run now. The open round is abandoned; the newest model stays."""
    await coordinator.threads.run(coordinator.control.stop, run, body.reason, admin)
    return await _read_view(coordinator, run)


@router.get("/runs/{run}/rounds", dependencies=[Viewer])
async def list_rounds(run: RunId, coordinator: Coordinator) -> list[RoundView]:
    """Every attempt of every round with its ledger."""
    return list(await coordinator.threads.run(coordinator.store.rounds, run))


@router.get("/runs/{run}/rounds/{n}", dependencies=[Viewer])
async def show_round(run: RunId, n: Number, coordinator: Coordinator, attempt: Attempt = None) -> RoundView:
    """One attempt of a round with its ledger and evaluations."""
    return await coordinator.threads.run(coordinator.store.round_view, run, n, attempt)


@router.get("/runs/{run}/evaluations", dependencies=[Viewer])
async def list_evaluations(run: RunId, coordinator: Coordinator) -> list[EvaluationView]:
    """Every evaluation of the run's models, round 0 being the initial one."""
    return list(await coordinator.threads.run(coordinator.store.evaluations, run))
