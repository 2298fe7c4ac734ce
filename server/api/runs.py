"""Runs: create, look, control."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.api.documents import Number, RunId, as_json
from server.coordinator import Admin, Coordinator, Here, Reader
from server.lifecycle.events import Event, PauseRequested, ResumeRequested, StartRequested, StopRequested
from server.runs.initial import Initial, initial
from shared.problems import NameTaken, NotFound
from shared.schemas import ControlRequest, EvaluationView, RoundView, RunRequest, RunSummary, RunView

router = APIRouter(tags=["runs"])
NO_REASON = ControlRequest()
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="which attempt; otherwise the newest")]


@router.post("/runs", status_code=201)
async def create(body: RunRequest, here: Here, admin: Admin) -> RunView:
    """Create a run. Its initial weights are built from task and seed, or were uploaded before."""
    name = body.config.name
    await _check_free(here, name)  # before the model is built; the table's key decides
    limit = here.settings.max_update_bytes
    made = await here.threads.run_long(initial, body.config, body.initial, here.blobs, limit)
    await here.threads.run(_store, here, body, made, admin)
    here.hub.wake_everyone()
    here.hub.announce(name)
    return await _view(here, name)


def _store(here: Coordinator, body: RunRequest, made: Initial, actor: str) -> None:
    here.store.create_run(
        body.config,
        classes=made.classes,
        manifest=made.manifest,
        initial_model=made.digest,
        initial_bytes=made.bytes,
        actor=actor,
        now=here.clock(),
    )


async def _check_free(here: Coordinator, name: str) -> None:
    try:
        await here.threads.run(here.store.run_state, name)
    except NotFound:
        return
    raise NameTaken(f"there is a run {name!r} already", hint="Choose another name.")


async def _view(here: Coordinator, run: str) -> RunView:
    return await here.threads.run(here.store.run_view, run, here.clock())


@router.get("/runs", dependencies=[Reader])
async def runs(here: Here) -> list[RunSummary]:
    """All runs."""
    return list(await here.threads.run(here.store.runs))


@router.get("/runs/{run}", dependencies=[Reader], response_model=RunView)
async def show(run: RunId, here: Here) -> Response:
    """One run with its configuration, enrolments and current round."""
    return as_json(await _view(here, run))


async def _control(here: Coordinator, run: str, event: Event, actor: str) -> RunView:
    await here.commit(run, event, actor=actor)
    return await _view(here, run)


@router.post("/runs/{run}/start")
async def start(run: RunId, here: Here, admin: Admin) -> RunView:
    """Start with the trainers that are ready, without waiting for more."""
    return await _control(here, run, StartRequested(), admin)


@router.post("/runs/{run}/pause")
async def pause(run: RunId, here: Here, admin: Admin, body: ControlRequest = NO_REASON) -> RunView:
    """Open no further round. The open one goes on collecting and may complete."""
    return await _control(here, run, PauseRequested(body.reason), admin)


@router.post("/runs/{run}/resume")
async def resume(run: RunId, here: Here, admin: Admin) -> RunView:
    """Go on after a pause."""
    return await _control(here, run, ResumeRequested(), admin)


@router.post("/runs/{run}/stop")
async def stop(run: RunId, here: Here, admin: Admin, body: ControlRequest = NO_REASON) -> RunView:
    """End the run now. The open round is abandoned; the newest model stays."""
    return await _control(here, run, StopRequested(body.reason), admin)


@router.get("/runs/{run}/rounds", dependencies=[Reader])
async def rounds(run: RunId, here: Here) -> list[RoundView]:
    """Every attempt of every round with its ledger."""
    return list(await here.threads.run(here.store.rounds, run))


@router.get("/runs/{run}/rounds/{n}", dependencies=[Reader])
async def one_round(run: RunId, n: Number, here: Here, attempt: Attempt = None) -> RoundView:
    """One attempt of a round with its ledger and evaluations."""
    return await here.threads.run(here.store.round_view, run, n, attempt)


@router.get("/runs/{run}/evaluations", dependencies=[Reader])
async def evaluations(run: RunId, here: Here) -> list[EvaluationView]:
    """Every evaluation of the run's models, round 0 being the initial one."""
    return list(await here.threads.run(here.store.evaluations, run))
