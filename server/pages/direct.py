"""Open pages that ask for themselves again, answered before FastAPI is asked, like ``server.api.direct``.

Routing, dependencies and validation cost more than handing out a page that is there already. Who may read it,
and what is noted of that, say the same functions as at FastAPI; so does what is shown.
"""

from __future__ import annotations

import re

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.dependencies import require_visit
from server.api.documents import SLUG
from server.coordinator import Coordinator
from server.pages.kept import REFETCH
from server.web.errors import Respond
from shared.problems import Problem

__all__ = ["DirectPages"]

RUNS, RUN = "/", "/runs/{run}"
_RUN = re.compile(rf"/runs/({SLUG.strip('^$')})", re.ASCII)
_REFETCH = REFETCH.lower().encode()


class DirectPages:
    """``pages`` has the pages of all runs and of one; ``respond`` answers problems."""

    def __init__(self, app: ASGIApp, *, coordinator: Coordinator, pages: APIRouter, respond: Respond) -> None:
        self.app = app
        self._coordinator = coordinator
        self._respond = respond
        self._routes = {route.path: route for route in pages.routes if isinstance(route, APIRoute)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find_page(scope) if scope["type"] == "http" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        route, given = found
        request = Request({**scope, "route": route, "path_params": given}, receive)
        try:
            await require_visit(self._coordinator, request)
            answer = await route.endpoint(request, **given)
        except Problem as problem:
            answer = self._respond(request, problem)
        await answer(request.scope, receive, send)

    def _find_page(self, scope: Scope) -> tuple[APIRoute, dict[str, str]] | None:
        """The page, and what its address gives; None: it is another one, or asked for by hand."""
        if scope["method"] != "GET" or scope["query_string"]:
            return None
        if not any(name == _REFETCH for name, _ in scope["headers"]):
            return None
        if scope["path"] == RUNS:
            return self._routes[RUNS], {}
        found = _RUN.fullmatch(scope["path"])
        return None if found is None else (self._routes[RUN], {"run": found[1]})
