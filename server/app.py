"""Wiring: makes the parts of a coordinator and joins them into the HTTP application."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request, Response
from starlette.routing import Match

from server.api import api_routers
from server.api.direct import DirectCalls
from server.api.polls import DirectPolls
from server.background import repeat
from server.batches import Batches
from server.blobs import open_blobs, open_lines
from server.blobs.integrity import BlobIntegrity
from server.certificates import find_entrance
from server.clock import Clock, utc_now
from server.coordinator import Coordinator
from server.database.integrity import rows_are_read
from server.database.session import make_engine
from server.database.store import Store
from server.garbage import spare_program
from server.monitoring.metrics import Telemetry
from server.monitoring.readiness import Readiness
from server.pages import STATIC, SignIn, pages_router, problem_response, wants_html
from server.pages.actions import Actions
from server.pages.assets import Assets
from server.pages.clients_page import Invitations
from server.pages.create_page import Creation
from server.pages.direct import DirectPages
from server.pages.users_page import Users
from server.removals import FILE as REMOVALS
from server.removals import Removals
from server.revocations import FILE as REVOCATIONS
from server.revocations import Revocations
from server.runs.answers import AnswerIntake
from server.runs.assignments import Assignments
from server.runs.blob_faults import BlobFaults
from server.runs.control import Control
from server.runs.enrolment import Enrolments
from server.runs.intake import Intake
from server.runs.layout import RunLayouts
from server.runs.moves import Moves
from server.runs.people import People
from server.runs.presence import Presence
from server.runs.removal import Removal
from server.runs.runner import ACTOR, Runner
from server.runs.scrub import Scrub
from server.runs.space import Space
from server.runs.timekeeping import TimeKeeper
from server.settings import Settings
from server.sinks.configured import FOLDER, make_sinks
from server.sinks.follow import SinkFollower
from server.threads import Threads
from server.wakeups.feeds import Feeds
from server.wakeups.hub import Hub
from server.web import errors
from server.web.admission import Admission, Gate
from server.web.calls import Call
from server.web.middleware import HeadAsGet, SecurityHeaders
from server.web.oidc import make_provider
from server.web.open_calls import OpenCalls, Revocable
from server.web.protocol import Connections
from server.web.read_notes import Note, ReadNotes
from server.web.security import (
    Guard,
    KnownClient,
    Owner,
    Person,
    hash_token,
    load_tokens,
    make_key,
    make_person,
)
from server.web.sessions import Sessions
from shared.problems import MissingToken, Problem, Unauthorised
from shared.schemas import Assignment, EventView
from shared.versions import VERSION

__all__ = ["create_app", "make_coordinator", "prepare"]

THREADS_SQLITE = 4
"""SQLite runs in this process: more threads only contend for its lock (12 take a third more CPU)."""
THREADS_POSTGRES = 12
OTHERS_SECONDS = 1.0
REVOCATIONS_OVERLAP = dt.timedelta(seconds=5)
"""A revocation is visible a little after the time that it bears."""


def make_coordinator(settings: Settings, clock: Clock | None = None) -> Coordinator:
    """The parts, not started yet. The database must be at the current schema.

    ``clock``: otherwise the system's; with PostgreSQL the database's, since several coordinators share it.
    """
    # a SQLite database belongs to one process (server.ownership)
    store = Store(make_engine(settings.database), is_only_writer=not settings.on_postgres)
    clock = clock or Clock(store.read_time if settings.on_postgres else utc_now)
    blobs = open_blobs(settings, store)
    telemetry, integrity = Telemetry(), BlobIntegrity(blobs)
    threads = Threads(THREADS_POSTGRES if settings.on_postgres else THREADS_SQLITE)
    feeds = _make_feeds(store, threads)
    hub = Hub(feeds)
    faults = BlobFaults(store, integrity, clock)
    moves = Moves()
    runner = Runner(
        store=store,
        blobs=blobs,
        integrity=integrity,
        faults=faults,
        moves=moves,
        hub=hub,
        threads=threads,
        telemetry=telemetry,
        settings=settings,
        clock=clock,
    )

    space = Space(store, blobs.folder, threads, settings)
    telemetry.watch(
        "feddisco_disk_free_bytes",
        "Bytes free on the disk of the files, at the last measurement",
        lambda: space.usage.free if space.usage is not None else math.nan,
    )
    telemetry.watch(
        "feddisco_space_warnings",
        "Quotas, and the disk, that are nearly or wholly used up",
        lambda: len(space.find_warnings()),
    )

    async def find(token_hash: str) -> Owner | None:
        row = await threads.run(store.client_by_token_hash, token_hash)
        if row is not None:
            return KnownClient(row.client, row.revoked_at is not None)
        user = await threads.run(store.user_by_token_hash, token_hash)
        return None if user is None else make_person(user.user)

    async def find_session(session_hash: str) -> tuple[str, dt.datetime] | None:
        return await threads.run(store.session, session_hash, clock())

    async def keep_session(session_hash: str, token_hash: str, ends_at: dt.datetime, actor: str) -> None:
        await threads.run(store.start_session, session_hash, token_hash, ends_at, actor, clock())

    async def write_note(note: Note) -> None:
        add = partial(
            store.add_audit_entry,
            note.action,
            actor=note.actor,
            now=clock(),
            run=note.run,
            client=note.client,
            detail=note.detail,
            durable=False,
        )
        await threads.run(add)

    async def is_join_code(token_hash: str) -> bool:
        return await threads.run(store.is_join_token, token_hash)

    try:
        admin_token, viewer_token = load_tokens(settings, partial(_find_holder, store))
    except Problem:
        store.engine.dispose()
        raise
    guard = Guard(
        admin=admin_token,
        viewer=viewer_token,
        reading=settings.reading,
        find=find,
        find_session=find_session,
        is_join_code=is_join_code,
        is_sole=not settings.on_postgres,
        is_watched=lambda: settings.on_postgres and store.is_watched,
        clock=clock,
    )
    telemetry.watch(
        "feddisco_waiting_polls", "Long polls waiting for an assignment", lambda: hub.waiting_polls
    )
    telemetry.watch(
        "feddisco_delayed_aggregations",
        "Rounds whose aggregation met a fault of disk or database and is tried again",
        lambda: runner.delayed,
    )
    telemetry.watch("feddisco_event_streams", "Event streams that are open", lambda: hub.open_streams)
    gate = Gate(settings, guard, telemetry.count_limit)
    connections = Connections(settings, telemetry.note_refusal)
    telemetry.watch("feddisco_open_uploads", "Uploads being received", lambda: gate.places[Call.UPLOAD].taken)
    telemetry.watch("feddisco_connections", "Connections that are open", lambda: connections.places.taken)
    assignments = Assignments(store, runner, clock)

    async def take_each(clients: Sequence[str]) -> Mapping[str, Assignment | None]:
        return await threads.run(assignments.take_each, clients)

    enrolments = Enrolments(store, runner, Revocations(open_lines(settings, REVOCATIONS)), clock)
    coordinator = Coordinator(
        settings=settings,
        entrance=find_entrance(settings),
        clock=clock,
        store=store,
        blobs=blobs,
        space=space,
        integrity=integrity,
        faults=faults,
        hub=hub,
        feeds=feeds,
        threads=threads,
        guard=guard,
        gate=gate,
        connections=connections,
        sessions=Sessions(admin_token, clock, keep_session),
        provider=make_provider(settings, clock),
        open_calls=OpenCalls(),
        read_notes=ReadNotes(write_note),
        telemetry=telemetry,
        readiness=Readiness(threads),
        runner=runner,
        timekeeper=TimeKeeper(store, runner, clock),
        control=Control(store, blobs, runner, space, settings.max_update_bytes, clock),
        removal=Removal(store, runner, enrolments, Removals(open_lines(settings, REMOVALS)), clock),
        enrolments=enrolments,
        people=People(store, enrolments.revocations, clock),
        assignments=assignments,
        polls=Batches(take_each),
        scrub=Scrub(
            store=store,
            blobs=blobs,
            faults=faults,
            threads=threads,
            telemetry=telemetry,
            clock=clock,
            every=settings.scrub_every_seconds,
            rate=settings.scrub_bytes_per_second,
        ),
        layouts=RunLayouts(store, threads, clock),
        intake=Intake(
            store=store,
            blobs=blobs,
            integrity=integrity,
            faults=faults,
            runner=runner,
            space=space,
            moves=moves,
            telemetry=telemetry,
            max_bytes=settings.max_update_bytes,
            clock=clock,
        ),
        answers=AnswerIntake(
            store=store,
            blobs=blobs,
            integrity=integrity,
            faults=faults,
            runner=runner,
            space=space,
            max_bytes=settings.max_update_bytes,
            clock=clock,
        ),
        presence=Presence(store, threads, clock),
        sinks=[
            SinkFollower(sink, store, clock, telemetry, blobs.local, settings.data_folder / FOLDER)
            for sink in make_sinks(settings)
        ],
    )
    # also of clients that are erased in the background, or whose erasure then fails
    runner.on_revoked = lambda client: coordinator.end_access(make_key("client", client))
    return coordinator


def _find_holder(store: Store, token_hash: str) -> str | None:
    """Who has the token of this hash, be it in use or not."""
    with rows_are_read(store.engine):
        if store.is_join_token(token_hash):
            return "a join code"
        if (client := store.client_by_token_hash(token_hash)) is not None:
            return f"client {client.client!r}"
        user = store.user_by_token_hash(token_hash)
        return None if user is None else f"user {user.user.name!r}"


def _make_feeds(store: Store, threads: Threads) -> Feeds:
    async def read(after: int, run: str | None, most: int) -> Sequence[EventView]:
        return await threads.run_for_viewers(store.events, after, run, most)

    async def find_newest(run: str | None) -> int:
        return await threads.run_for_viewers(store.latest_event_id, run)

    return Feeds(read, find_newest)


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
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # ours: server.monitoring, server.sinks
    )
    app.state.coordinator = coordinator
    count = coordinator.telemetry.count_problem

    async def end_session(session_hash: str, actor: str) -> None:
        await coordinator.threads.run(coordinator.store.end_session, session_hash, actor, coordinator.clock())
        coordinator.end_access(make_key("session", session_hash))

    async def find_person(name: str) -> tuple[Person, str] | None:
        user = await coordinator.threads.run(coordinator.store.user, name)
        if user is None or user.user.revoked_at is not None:
            return None
        return make_person(user.user), user.token_hash

    sign_in = SignIn(
        sessions=coordinator.sessions,
        guard=coordinator.guard,
        end_session=end_session,
        count=count,
        clock=coordinator.clock,
        provider=coordinator.provider,
        find_person=find_person,
    )
    respond = errors.make_responder(count, partial(_render_page, sign_in))
    errors.install(app, respond)
    stall_seconds = coordinator.settings.stall_seconds
    pages = pages_router(
        coordinator.store,
        coordinator.clock,
        coordinator.sessions,
        coordinator.threads.run_for_viewers,
        coordinator.space.find_warnings,
        coordinator.entrance.url,
        lambda: coordinator.feeds.followers,
        coordinator.hub.sleep,
    )
    app.add_middleware(DirectCalls, coordinator=coordinator, respond=respond)  # innermost
    app.add_middleware(DirectPages, coordinator=coordinator, pages=pages, respond=respond)
    app.add_middleware(Revocable, calls=coordinator.open_calls, respond=respond)
    app.add_middleware(Admission, gate=coordinator.gate, stall_seconds=stall_seconds, respond=respond)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(HeadAsGet)
    app.add_middleware(DirectPolls, coordinator=coordinator, respond=respond)  # outermost
    forms = (
        sign_in,
        Actions(coordinator),
        Creation(coordinator),
        Invitations(coordinator),
        Users(coordinator),
    )
    for router in (*api_routers(), pages, *(form.router() for form in forms)):
        app.router.routes.extend(router.routes)  # included, each route would be built once more
    app.mount("/static", Assets(directory=STATIC), name="static")
    return app


def _render_page(sign_in: SignIn, request: Request, problem: Problem, answer: Response) -> Response | None:
    """For a browser: the problem as a page, with the headers of the answer for programs.

    Who may not read is asked for a token; whose session has ended meanwhile, and then for the form again.
    """
    if request.url.path.startswith("/api/") or not wants_html(request):
        return None
    if isinstance(problem, Unauthorised):
        fault = "" if isinstance(problem, MissingToken) else str(problem)
        if request.method == "GET":
            wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        else:
            wanted, fault = _find_form(request), fault or SESSION_OVER
        page = sign_in.ask(request, wanted, fault, problem.status)
    else:
        page = problem_response(problem, sign_in.clock())
    for name, value in answer.headers.items():
        page.headers.setdefault(name, value)
    return page


SESSION_OVER = (
    "Nobody is signed in with this browser any more. Sign in, then send the form again; what was typed is "
    "still there if you go back."
)


def _find_form(request: Request) -> str:
    """Where the form is that was sent: most are at their own address."""
    asked = {**request.scope, "method": "GET"}
    has_page = any(route.matches(asked)[0] is Match.FULL for route in request.app.router.routes)
    return request.url.path if has_page else "/"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    coordinator: Coordinator = app.state.coordinator
    async with AsyncExitStack() as stack:
        stack.callback(coordinator.close)
        await stack.enter_async_context(_background(coordinator))
        yield
        coordinator.hub.close()


def prepare(coordinator: Coordinator) -> None:
    """What is written before the first request; before the server starts, so that a fault is one sentence."""
    with rows_are_read(coordinator.store.engine):
        for token in coordinator.settings.join_tokens:
            coordinator.store.add_join_token(hash_token(token), None, None, coordinator.clock(), ACTOR)
        coordinator.timekeeper.start()
        coordinator.faults.load()
        coordinator.enrolments.apply_revocations(coordinator.enrolments.revocations.read(), ACTOR)
        coordinator.removal.apply()


async def _follow_others(coordinator: Coordinator) -> None:
    """What another coordinator has committed is known here as well within a second or two.

    What it has revoked ends then.
    """
    since = coordinator.clock() - REVOCATIONS_OVERLAP

    async def look() -> None:
        nonlocal since
        now = coordinator.clock()
        seen = await coordinator.threads.run(coordinator.store.look_for_others, since)
        if seen.concerns_tokens:
            coordinator.guard.forget_clients()
        for kind, name in seen.ended:
            coordinator.end_access_here(make_key(kind, name))
        since = now - REVOCATIONS_OVERLAP

    await repeat(OTHERS_SECONDS, look, "cannot look for what other coordinators do now", at_once=True)


@asynccontextmanager
async def _background(coordinator: Coordinator) -> AsyncIterator[None]:
    """Tasks that live as long as the application; cancelled at its end."""
    runner, background = coordinator.runner, coordinator.background
    background.start("deadlines", runner.run(coordinator.timekeeper.keep))
    background.start("collection", runner.collect())
    background.start("scrub", coordinator.scrub.run())
    background.start("space", coordinator.space.run())
    background.start("presence", coordinator.presence.run())
    background.start("erasure", coordinator.removal.run(coordinator.threads))
    for follower in coordinator.sinks:
        background.start(f"sink {follower.sink.name}", follower.run())
    if coordinator.settings.on_postgres:
        from server.wakeups.postgres import PostgresRelay

        relay = PostgresRelay(coordinator.settings.database, coordinator.hub)
        coordinator.hub.relay, coordinator.hub.on_end = relay, coordinator.end_access_here
        coordinator.hub.on_news = coordinator.store.note_others
        background.start("relay", relay.run())
        background.start("others", _follow_others(coordinator))
    spare_program()  # PyTorch is not there yet: it comes with the first run, and takes some hundred megabytes
    try:
        yield
    finally:
        await background.cancel()
