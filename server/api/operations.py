"""For operators: liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from server.coordinator import Coordinator, Here, Reader
from server.database.migrations import check_current
from server.monitoring.metrics import CONTENT_TYPE
from server.version import VERSION
from shared.problems import Problem
from shared.schemas import Health

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def healthz() -> Health:
    """The process is alive. Asks nothing else."""
    return Health(status="ok", version=VERSION)


@router.get("/readyz", responses={503: {"model": Health, "description": "Something is missing"}})
async def readyz(here: Here) -> Response:
    """The database answers, its schema is this program's, blobs can be written."""
    checks = await here.threads.run(_checks, here)
    ready = all(word == "ok" for word in checks.values())
    health = Health(status="ok" if ready else "unavailable", version=VERSION, checks=checks)
    return JSONResponse(health.model_dump(mode="json"), 200 if ready else 503)


def _checks(here: Coordinator) -> dict[str, str]:
    checks: dict[str, Callable[[], object]] = {
        "database": lambda: here.store.latest_event_id(None),
        "schema": lambda: check_current(here.store.engine),
        "blobs": here.blobs.check,
    }
    return {name: _word(check) for name, check in checks.items()}


def _word(check: Callable[[], object]) -> str:
    try:
        check()
    except Problem as problem:
        return f"{problem.code}: {problem.detail}"
    except Exception as error:
        return f"failed: {type(error).__name__}"
    return "ok"


@router.get("/metrics", dependencies=[Reader], response_class=Response)
async def metrics(here: Here) -> Response:
    """Prometheus metrics of this process and counts from the database."""
    here.telemetry.stored(await here.threads.run(here.store.counts))
    return Response(here.telemetry.render(), headers={"Content-Type": CONTENT_TYPE})
