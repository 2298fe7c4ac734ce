"""The status pages: parse, read, render. No SQL, no arithmetic, nothing that writes."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, params
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from server.api.dependencies import Viewer
from server.pages.chart_files import find_chart, write_csv, write_svg
from server.pages.charts import LineChart
from server.pages.compare_page import Asked, compare_page
from server.pages.contexts import Connected, Page, ProblemEntry, ProblemPage, ProblemsPage, RunsPage
from server.pages.kept import INTERVAL_SECONDS, REFETCH, KeptPages, Made, PageKey
from server.pages.losses import TrainingLosses
from server.pages.metric_words import name_metric, write_metric
from server.pages.offers import list_first_steps
from server.pages.reader import Reader
from server.pages.reference_page import reference_page
from server.pages.round_page import round_page
from server.pages.run_page import run_page
from server.pages.words import FILTERS
from server.web.numbers import parse_whole
from server.web.security import Visit
from server.web.sessions import Sessions
from shared.problems import NotFound, Problem, catalogue
from shared.run_search import RunSearch
from shared.texts import find_unstorable

__all__ = ["STATIC", "make_router", "pages_router", "problem_response", "render_visit", "wants_html"]

STATIC = Path(__file__).parent / "static"
"""Folder to be mounted at ``/static``. Addresses carry the content's hash and may be cached for ever."""

LARGEST_NUMBER = 999_999_999

SECONDS_A_VIEWER = 0.06
"""Each open page asks the more seldom for itself, the more are open: all together 17 times a second."""
RENDERINGS_A_PACE = 4
"""A page is made so many times in the time in which each that is open asks once, at most."""

ANY_SEAL = "0000-seal-of-this-session-0000"
"""Stands in a page that was made for several sessions where each has its own seal."""

RECENTLY = dt.timedelta(minutes=2)
"""A waiting client asks again at least once a minute; one that is silent for longer is not counted."""

_TEMPLATES = Path(__file__).parent / "templates"


@lru_cache
def asset(name: str) -> str:
    """Address of a static file, with its hash: a new version gets a new one."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


@lru_cache(1)
def environment() -> Environment:
    """Autoescaping on, undefined names are errors."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.filters["metric"] = name_metric
    made.filters["score"] = lambda score: write_metric(score.name)(score.value)
    made.globals["asset"] = asset
    return made


def render(template: str, page: Page, status: int = 200) -> HTMLResponse:
    """The page as an answer that whoever asks may keep, if it asks again each time."""
    return HTMLResponse(fill(template, page), status, headers={"Cache-Control": "no-cache"})


def fill(template: str, page: Page) -> str:
    """The template with exactly the fields of its declared context."""
    fields = {field.name: getattr(page, field.name) for field in dataclasses.fields(page)}
    return environment().get_template(template).render(fields)


def answer_made(sessions: Sessions, request: Request, made: Made, is_refetch: bool) -> Response:
    """A page that was made for several, with this visitor's seal; 304 if its script has it already."""
    visit: Visit = request.state.visit
    headers = {"Cache-Control": "no-cache"}
    if is_refetch:
        headers["ETag"] = made.etag
    if visit.session is None:
        if is_refetch and request.headers.get("if-none-match") == made.etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return HTMLResponse(made.html, headers=headers)
    headers["Cache-Control"] = "no-store"  # others may use the same machine
    nonce, seal = sessions.protect_form(request)
    has_page = is_refetch and request.headers.get("if-none-match") == made.etag
    answer = (
        Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if has_page and sessions.has_nonce(request)
        else HTMLResponse(made.html.replace(ANY_SEAL.encode(), seal.encode()), headers=headers)
    )
    sessions.keep_nonce(request, answer, nonce)
    return answer


def render_visit(
    sessions: Sessions, request: Request, template: str, page: Page, status: int = HTTPStatus.OK
) -> HTMLResponse:
    """The page for who looks at it; who has signed in may send its forms."""
    visit: Visit = request.state.visit
    if visit.session is None:
        return render(template, dataclasses.replace(page, visitor=visit.person), status)
    nonce, seal = sessions.protect_form(request)
    answer = render(template, dataclasses.replace(page, seal=seal, visitor=visit.person), status)
    answer.headers["Cache-Control"] = "no-store"  # others may use the same machine
    sessions.keep_nonce(request, answer, nonce)
    return answer


def wants_html(request: Request) -> bool:
    """Whether a browser asks: it names HTML, programs name JSON or anything."""
    return "text/html" in request.headers.get("accept", "")


def problem_response(problem: Problem, now: dt.datetime) -> HTMLResponse:
    """A problem as a page, for a browser; programs get the same as ``application/problem+json``."""
    page = ProblemPage(title=f"{problem.title} ({problem.status})", now=now, problem=problem)
    return render("problem.html", page, problem.status)


def make_router(*dependencies: params.Depends) -> APIRouter:
    """For pages that have the same ``dependencies``."""
    return APIRouter(
        include_in_schema=False, default_response_class=HTMLResponse, dependencies=list(dependencies)
    )


def pages_router(
    store: Reader,
    clock: Callable[[], dt.datetime],
    sessions: Sessions,
    call: Callable[..., Awaitable[Any]],
    find_warnings: Callable[[], Sequence[str]] = tuple,
    address: str | None = None,
    count_viewers: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> APIRouter:
    """Routes of all pages but the sign-in; each says what ``find_warnings`` finds.

    ``call`` runs what reads and renders on a thread. ``address``: how sites reach the coordinator; None: as
    whoever looks at the page does. ``count_viewers``: how many pages are open, which sets their pace.
    ``sleep``: so many seconds, or until the process ends.

    A problem, such as a run that does not exist, is answered with a page and the problem's status.
    """
    router = make_router(Viewer)

    losses = TrainingLosses()

    async def find_version(run: str | None) -> int:
        return int(await call(store.latest_event_id, run))

    def find_pace() -> float:
        return max(INTERVAL_SECONDS, SECONDS_A_VIEWER * count_viewers())

    kept = KeptPages(call, find_version, lambda: find_pace() / RENDERINGS_A_PACE, sleep)

    def complete(page: Page) -> Page:
        return dataclasses.replace(page, warnings=tuple(find_warnings()), pace=round(find_pace(), 1))

    async def answer(request: Request, template: str, make: Callable[[dt.datetime], Page]) -> Response:
        """A page for whoever asks; it is made for each of them."""
        now = clock()
        try:
            made = await call(lambda: complete(make(now)))
            return render_visit(sessions, request, template, made)
        except Problem as problem:
            return problem_response(problem, now)

    async def answer_kept(
        request: Request, template: str, run: str | None, make: Callable[[dt.datetime], Page]
    ) -> Response:
        """A page that follows what happens: made once for all who may see the same."""
        visit: Visit = request.state.visit
        is_signed_in = visit.session is not None
        place = find_address(request) + request.url.path + f"?{request.url.query}"
        is_refetch = REFETCH in request.headers

        def render_anew() -> str:
            page = dataclasses.replace(complete(make(clock())), visitor=visit.person)
            return fill(template, dataclasses.replace(page, seal=ANY_SEAL) if is_signed_in else page)

        try:
            key = PageKey(place, visit.person, is_signed_in)
            made = await kept.get(key, run, render_anew, is_refetch=is_refetch)
        except Problem as problem:
            return problem_response(problem, clock())
        return answer_made(sessions, request, made, is_refetch)

    def find_address(request: Request) -> str:
        return address or str(request.base_url).rstrip("/")

    @router.get("/")
    async def runs(request: Request) -> Response:
        only, place, search = _read_runs(request), find_address(request), _read_search(request)
        return await answer_kept(
            request, "runs.html", None, lambda now: _runs_page(store, now, only, place, search)
        )

    @router.get("/runs")
    def runs_elsewhere() -> RedirectResponse:
        return RedirectResponse("/", HTTPStatus.PERMANENT_REDIRECT)

    @router.get("/runs/{run}")
    async def one_run(
        request: Request,
        run: str,
        rounds_before: Annotated[str, Query(alias="rounds-before", max_length=20)] = "",
        events_before: Annotated[str, Query(alias="log-before", max_length=20)] = "",
        zero: Annotated[str, Query(max_length=1)] = "",
    ) -> Response:
        def make(now: dt.datetime) -> Page:
            return run_page(
                store,
                losses,
                _name(run),
                now,
                address=find_address(request),
                rounds_before=_whole(rounds_before, "round") if rounds_before else None,
                events_before=_whole(events_before, "event") if events_before else None,
                from_zero=bool(zero),
            )

        return await answer_kept(request, "run.html", _storable(run), make)

    @router.get("/runs/{run}/charts/{chart}.{kind}")
    def one_chart(
        run: str, chart: str, kind: str, zero: Annotated[str, Query(max_length=1)] = ""
    ) -> Response:
        try:
            found = find_chart(store, losses, _name(run), chart, clock(), from_zero=bool(zero))
            return _chart_file(found, kind, f"{run}-{chart}")
        except Problem as problem:
            return problem_response(problem, clock())

    @router.get("/runs/{run}/rounds/{round}")
    async def one_round(
        request: Request, run: str, round: str, attempt: Annotated[str, Query(max_length=20)] = ""
    ) -> Response:
        def make(now: dt.datetime) -> Page:
            chosen = _whole(attempt, "attempt") if attempt else None
            return round_page(store, _name(run), _whole(round, "round"), now, chosen)

        return await answer_kept(request, "round.html", _storable(run), make)

    @router.get("/compare")
    async def compare(
        request: Request,
        runs: Annotated[list[str], Query(max_length=1000)] = [],  # noqa: B006 - FastAPI copies it
        baseline: Annotated[str, Query(max_length=200)] = "",
        measure: Annotated[str, Query(max_length=200)] = "",
        target: Annotated[str, Query(max_length=20)] = "",
        round: Annotated[str, Query(max_length=20)] = "",
        apart: Annotated[str, Query(max_length=1)] = "",
        pin: Annotated[list[str], Query(max_length=1000)] = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        only = _read_runs(request)
        asked = Asked(runs, baseline, measure, target, round, apart, pin)
        return await answer(request, "compare.html", lambda now: compare_page(store, asked, now, only))

    @router.get("/problems")
    async def problems(request: Request) -> Response:
        return await answer(request, "problems.html", _problems_page)

    @router.get("/docs")
    async def reference(request: Request) -> Response:
        return await answer(request, "reference.html", lambda now: reference_page(request.app.openapi(), now))

    @router.get("/favicon.ico")
    def favicon() -> Response:
        return RedirectResponse(asset("favicon.svg"), HTTPStatus.PERMANENT_REDIRECT)

    return router


def _chart_file(chart: LineChart, kind: str, name: str) -> Response:
    if kind == "svg":
        body, media = write_svg(environment(), chart), "image/svg+xml"
    elif kind == "csv":
        body, media = write_csv(chart), "text/csv; charset=utf-8"
    else:
        raise NotFound(f"A chart is no {kind[:20]!r} file.", hint="There are .svg and .csv.")
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"', "Cache-Control": "no-cache"}
    return Response(body, media_type=media, headers=headers)


def _name(text: str) -> str:
    """A run's name in an address. What PostgreSQL cannot look up names no run."""
    if find_unstorable(text) is not None:
        raise NotFound(f"There is no run {text[:40]!r}.")
    return text


def _storable(run: str) -> str | None:
    """The run whose newest event is asked for; None for a name that no run can have."""
    return run if find_unstorable(run) is None else None


def _whole(text: str, what: str) -> int:
    """A number in an address. Anything else is no page."""
    number = parse_whole(text, LARGEST_NUMBER)
    if number is None:
        raise NotFound(f"{text[:40]!r} is not the number of {'a' if what == 'round' else 'an'} {what}.")
    return number


def _read_runs(request: Request) -> frozenset[str] | None:
    """The only runs that the visitor may read; None: all."""
    visit: Visit = request.state.visit
    return visit.person.runs


def _read_search(request: Request) -> RunSearch:
    given = request.query_params
    return RunSearch(*(given.get(name, "")[:200].strip() for name in ("search", "state", "tag")))


def _runs_page(
    store: Reader, now: dt.datetime, only: frozenset[str] | None, address: str, search: RunSearch
) -> RunsPage:
    """``only``: the runs to show; the stream tells whoever reads some of nothing else."""
    latest = store.latest_event_id(None)
    shown = (run for run in store.runs(archived=True) if only is None or run.run in only)
    everything = sorted(shown, key=lambda run: run.created_at, reverse=True)
    found = search.find(everything)
    runs = [run for run in found if run.archived_at is None]
    by_words_alone = only is None and not (search.state or search.tag)
    return RunsPage(
        title="Runs",
        now=now,
        events=f"/api/v1/events?after={latest}",
        clients=_connected(store, now),
        active=tuple(run for run in runs if not run.status.is_terminal),
        ended=tuple(run for run in runs if run.status.is_terminal),
        archived=tuple(run for run in found if run.archived_at is not None),
        deleted=[it for it in store.deletions() if search.fits_words(it.run)] if by_words_alone else (),
        comparable=len(runs) > 1,
        first_steps=() if everything else list_first_steps(address),
        search=search,
        count=len(everything),
        states=sorted({run.status.value for run in everything}),
        tags=sorted({tag for run in everything for tag in run.tags}),
    )


def _connected(store: Reader, now: dt.datetime) -> Connected:
    known = [client for client in store.clients() if client.revoked_at is None]
    seen = [client.last_seen_at for client in known if client.last_seen_at is not None]
    return Connected(registered=len(known), heard=sum(now - at <= RECENTLY for at in seen))


def _problems_page(now: dt.datetime) -> ProblemsPage:
    """The catalogue by status and code; ``note`` is the first paragraph of the class's docstring."""
    entries = [
        ProblemEntry(
            code=code,
            status=kind.status,
            title=kind.title,
            family=kind.__mro__[1].__dict__.get("code", "") if kind is not Problem else "",
            note=(kind.__dict__.get("__doc__") or "").partition("\n\n")[0],
        )
        for code, kind in catalogue().items()
    ]
    return ProblemsPage(
        title="Problems", now=now, problems=sorted(entries, key=lambda entry: (entry.status, entry.code))
    )
