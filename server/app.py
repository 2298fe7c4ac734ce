"""Wiring: makes the parts of a coordinator and joins them to the HTTP application."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI, Request, Response

from server.api import api_routers, operations
from server.api.documents import REFUSALS
from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.coordinator import Coordinator, Reader
from server.database.session import make_engine
from server.database.store import Store
from server.monitoring.metrics import Telemetry
from server.pages import STATIC, pages_router, problem_response, wants_html
from server.pages.assets import Assets
from server.runs.presence import Presence
from server.runs.runner import ACTOR, Rounds
from server.settings import Settings
from server.threads import Threads
from server.version import VERSION
from server.wakeups.hub import Hub
from server.web import errors
from server.web.middleware import BodyLimit, SecurityHeaders
from server.web.security import Guard, KnownClient, admin_token, hash_token
from shared.problems import Problem

__all__ = ["create_app", "make_coordinator", "utc_now"]

JSON_BYTES = 2**20
THREADS_SQLITE = 4
"""SQLite works in this process: more threads only pass its lock around (12: a third more CPU)."""
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
    rounds = Rounds(
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
    telemetry.watch("feddisco_waiting_polls", "Clients that wait for work", lambda: hub.waiting_polls)
    telemetry.watch("feddisco_event_streams", "Open event streams", lambda: hub.open_streams)
    return Coordinator(
        settings=settings,
        clock=clock,
        store=store,
        blobs=blobs,
        hub=hub,
        threads=threads,
        guard=Guard(admin=admin_token(settings), viewer=viewer, find=find),
        telemetry=telemetry,
        rounds=rounds,
        integrity=integrity,
        presence=Presence(store, threads, clock),
    )


def create_app(coordinator: Coordinator) -> FastAPI:
    """The application around a coordinator; its lifespan starts and ends what runs in the background."""
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
    errors.install(app, coordinator.telemetry.problem, _asks_for_a_page, _as_page)
    app.add_middleware(BodyLimit, max_bytes=JSON_BYTES)
    app.add_middleware(SecurityHeaders)
    for router in api_routers():
        app.include_router(router, prefix="/api/v1")
    app.include_router(operations.router)
    app.include_router(pages_router(coordinator.store, coordinator.clock), dependencies=[Reader])
    app.mount("/static", Assets(directory=STATIC), name="static")
    return app


def _asks_for_a_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/")


def _as_page(request: Request, problem: Problem, answer: Response) -> Response | None:
    """For a browser the problem as a page, with what the answer says in its headers."""
    if not (_asks_for_a_page(request) and wants_html(request)):
        return None
    here: Coordinator = request.app.state.coordinator
    page = problem_response(problem, here.clock())
    for name, value in answer.headers.items():
        page.headers.setdefault(name, value)
    return page


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    here: Coordinator = app.state.coordinator
    await here.threads.run(_seed_join_tokens, here)
    await here.threads.run(here.rounds.make_up_for_absence)
    async with AsyncExitStack() as stack:
        stack.callback(here.close)
        await stack.enter_async_context(_background(here))
        yield
        here.hub.close()


@asynccontextmanager
async def _background(here: Coordinator) -> AsyncIterator[None]:
    """Tasks that live as long as the application; cancelled at its end."""
    tasks = [asyncio.create_task(here.rounds.run()), asyncio.create_task(here.presence.run())]
    if here.settings.on_postgres:
        from server.wakeups.postgres import PostgresRelay

        relay = PostgresRelay(here.settings.database, here.hub)
        here.hub.relay = relay
        tasks.append(asyncio.create_task(relay.run()))
    for task in tasks:
        task.add_done_callback(_report)
    here.rounds.warm_up()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a background task has ended: %s", error, exc_info=error)


def _seed_join_tokens(here: Coordinator) -> None:
    for token in here.settings.join_tokens:
        here.store.add_join_token(hash_token(token), None, None, here.clock(), ACTOR)
