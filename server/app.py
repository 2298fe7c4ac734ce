"""Wiring: makes the parts of a coordinator and joins them into the HTTP application."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI, Request, Response

from server.api import api_routers, operations
from server.api.dependencies import Viewer
from server.api.documents import REFUSALS
from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.coordinator import Coordinator
from server.database.session import make_engine
from server.database.store import Store
from server.monitoring.metrics import Telemetry
from server.pages import STATIC, pages_router, problem_response, wants_html
from server.pages.assets import Assets
from server.runs.assignments import Assignments
from server.runs.control import Control
from server.runs.enrolment import Enrolments
from server.runs.intake import Intake
from server.runs.layout import RunLayouts
from server.runs.presence import Presence
from server.runs.runner import ACTOR, Runner
from server.settings import Settings
from server.threads import Threads
from server.wakeups.hub import Hub
from server.web import errors
from server.web.middleware import BodyLimit, HeadAsGet, SecurityHeaders
from server.web.security import Guard, KnownClient, hash_token, load_admin_token
from shared.problems import Problem
from shared.versions import VERSION

__all__ = ["create_app", "make_coordinator", "utc_now"]

JSON_BYTES = 2**20
THREADS_SQLITE = 4
"""SQLite runs in this process: more threads only contend for its lock (12 take a third more CPU)."""
THREADS_POSTGRES = 12

log = logging.getLogger("feddisco")


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def make_coordinator(settings: Settings, clock: Callable[[], dt.datetime] = utc_now) -> Coordinator:
    """The parts, not started yet. The database must be at the current schema."""
    store = Store(make_engine(settings.database))
    blobs = BlobStore(settings.data_folder / "blobs")
    hub, telemetry, integrity = Hub(), Telemetry(), BlobIntegrity()
    threads = Threads(THREADS_POSTGRES if settings.on_postgres else THREADS_SQLITE)
    runner = Runner(
        store=store,
        blobs=blobs,
        integrity=integrity,
        hub=hub,
        threads=threads,
        telemetry=telemetry,
        settings=settings,
        clock=clock,
    )

    async def find(token_hash: str) -> KnownClient | None:
        row = await threads.run(store.client_by_token_hash, token_hash)
        return None if row is None else KnownClient(row.client, row.revoked_at is not None)

    viewer = settings.viewer_token.get_secret_value() if settings.viewer_token is not None else None
    telemetry.watch(
        "feddisco_waiting_polls", "Long polls waiting for an assignment", lambda: hub.waiting_polls
    )
    telemetry.watch("feddisco_event_streams", "Event streams that are open", lambda: hub.open_streams)
    return Coordinator(
        settings=settings,
        clock=clock,
        store=store,
        blobs=blobs,
        hub=hub,
        threads=threads,
        guard=Guard(admin=load_admin_token(settings), viewer=viewer, find=find),
        telemetry=telemetry,
        runner=runner,
        control=Control(store, blobs, runner, settings.max_update_bytes, clock),
        enrolments=Enrolments(store, runner, clock),
        assignments=Assignments(store, runner, clock),
        layouts=RunLayouts(store, threads, clock),
        intake=Intake(
            store=store,
            blobs=blobs,
            integrity=integrity,
            runner=runner,
            telemetry=telemetry,
            max_bytes=settings.max_update_bytes,
            clock=clock,
        ),
        presence=Presence(store, threads, clock),
    )


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application around a coordinator; its lifespan starts and ends the background tasks."""
    app = FastAPI(
        title="FedDisco coordinator",
        description="Federated learning with discrepancy-aware aggregation weights. "
        "Errors are RFC 9457 problem documents.",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        responses=REFUSALS,
    )
    app.state.coordinator = coordinator
    errors.install(app, coordinator.telemetry.count_problem, _is_page, _render_page)
    app.add_middleware(BodyLimit, max_bytes=JSON_BYTES)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(HeadAsGet)
    for router in api_routers():
        app.include_router(router, prefix="/api/v1")
    app.include_router(operations.router)
    app.include_router(pages_router(coordinator.store, coordinator.clock), dependencies=[Viewer])
    app.mount("/static", Assets(directory=STATIC), name="static")
    return app


def _is_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/")


def _render_page(request: Request, problem: Problem, answer: Response) -> Response | None:
    """For a browser: the problem as a page, with the headers of the answer for programs."""
    if not (_is_page(request) and wants_html(request)):
        return None
    coordinator: Coordinator = request.app.state.coordinator
    page = problem_response(problem, coordinator.clock())
    for name, value in answer.headers.items():
        page.headers.setdefault(name, value)
    return page


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    coordinator: Coordinator = app.state.coordinator
    await coordinator.threads.run(_seed_join_tokens, coordinator)
    await coordinator.threads.run(coordinator.runner.make_up_for_absence)
    async with AsyncExitStack() as stack:
        stack.callback(coordinator.close)
        await stack.enter_async_context(_background(coordinator))
        yield
        coordinator.hub.close()


@asynccontextmanager
async def _background(coordinator: Coordinator) -> AsyncIterator[None]:
    """Tasks that live as long as the application; cancelled at its end."""
    tasks = [asyncio.create_task(coordinator.runner.run()), asyncio.create_task(coordinator.presence.run())]
    if coordinator.settings.on_postgres:
        from server.wakeups.postgres import PostgresRelay

        relay = PostgresRelay(coordinator.settings.database, coordinator.hub)
        coordinator.hub.relay = relay
        tasks.append(asyncio.create_task(relay.run()))
    for task in tasks:
        task.add_done_callback(_log_end)
    coordinator.runner.warm_up()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a background task has ended: %s", error, exc_info=error)


def _seed_join_tokens(coordinator: Coordinator) -> None:
    for token in coordinator.settings.join_tokens:
        coordinator.store.add_join_token(hash_token(token), None, None, coordinator.clock(), ACTOR)
