"""For operators: liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from server.api.dependencies import Coordinator, ViewerOfAll
from server.api.documents import make_router
from server.database.migrations import check_current
from server.monitoring.metrics import CONTENT_TYPE
from shared.problems import StorageUnavailable
from shared.schemas import Health
from shared.versions import VERSION

router = make_router("operations", prefix="")


@router.get("/healthz")
async def healthz() -> Health:
    """The process is alive. Asks nothing else."""
    return Health(status="ok", version=VERSION)


@router.get("/readyz", responses={503: {"model": Health, "description": "Something is missing"}})
async def readyz(coordinator: Coordinator) -> Response:
    """Whether the database answers and takes writes, its schema fits this program, blobs can be written, and
    all tasks run.
    """
    vital = _vital_checks(coordinator)
    checks = await coordinator.readiness.find(vital | _warning_checks(coordinator))
    is_ready = all(checks[name] == "ok" for name in vital)
    checks["space"] = "; ".join(coordinator.space.find_warnings()) or "ok"
    is_well = all(word == "ok" for word in checks.values())
    status: Any = "ok" if is_well else "degraded" if is_ready else "unavailable"
    health = Health(status=status, version=VERSION, checks=checks)
    return JSONResponse(health.model_dump(mode="json"), 200 if is_ready else 503)


def _vital_checks(coordinator: Coordinator) -> dict[str, Callable[[], object]]:
    return {
        "database": lambda: _check_database(coordinator),
        "schema": lambda: check_current(coordinator.store.engine),
        "blobs": coordinator.blobs.check,
        "background": coordinator.background.check,
    }


def _check_database(coordinator: Coordinator) -> None:
    coordinator.store.latest_event_id(None)
    coordinator.timekeeper.check()


def _warning_checks(coordinator: Coordinator) -> dict[str, Callable[[], object]]:
    """What somebody has to look at, while clients can be served: with their help some of it mends itself."""
    store, runner = coordinator.store, coordinator.runner
    return {
        "files": lambda: _warn(len(store.faulty_blobs()), "stored file", "missing or damaged"),
        "aggregation": lambda: _warn(runner.delayed, "round", "waiting to be aggregated"),
    }


def _warn(number: int, noun: str, what: str) -> None:
    if number:
        what = f"{number} {noun}{' is' if number == 1 else 's are'} {what}"
        raise StorageUnavailable(what, public=what)


@router.get("/metrics", dependencies=[ViewerOfAll], response_class=Response)
async def metrics(coordinator: Coordinator) -> Response:
    """Prometheus metrics of this process and counts from the database."""
    store, threads = coordinator.store, coordinator.threads
    coordinator.telemetry.set_stored(await threads.run(store.counts))
    coordinator.telemetry.set_waiting(await threads.run(store.waiting_since))
    coordinator.telemetry.set_runs(await threads.run(store.run_figures, coordinator.clock()))
    return Response(coordinator.telemetry.render(), headers={"Content-Type": CONTENT_TYPE})
