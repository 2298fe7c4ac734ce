"""The calls that every worker makes in every round, answered before FastAPI is asked.

Plain ASGI, inside admission. FastAPI's routing and validation cost more than these calls themselves; they
are declared there all the same, and documented by it. What is answered here is what a worker sends; whatever
looks different goes on to FastAPI, which answers it by the same functions, or says what is wrong with it.
Requests for work pass more by: ``server.api.polls``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.blobs import answer_from_memory
from server.api.documents import SLUG
from server.api.updates import take_answer, take_update
from server.coordinator import Coordinator
from server.web.errors import Respond, translate_http
from server.web.security import KnownClient, read_bearer
from shared.problems import Problem
from shared.schemas import UpdateReport

__all__ = ["DirectCalls"]

API = "/api/v1"
BLOBS = f"{API}/blobs/"
_BLOB = re.compile(rf"{BLOBS}([0-9a-f]{{64}})", re.ASCII)
_OF_ROUND = re.compile(rf"{API}/runs/({SLUG.strip('^$')})/rounds/([0-9]{{1,9}})/(update|step)", re.ASCII)
_CONDITIONS = (b"range", b"if-none-match")
"""Headers that ask for something else than the whole file."""


class DirectCalls:
    """Around the application of a coordinator; ``respond`` answers problems."""

    def __init__(self, app: ASGIApp, *, coordinator: Coordinator, respond: Respond) -> None:
        self.app = app
        self._coordinator = coordinator
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._find_call(scope) if scope["type"] == "http" else None
        if call is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await call(request)
        except Problem as problem:
            answer = self._respond(request, problem)
        except HTTPException as error:  # of a body that is too long, or stopped coming
            answer = self._respond(request, translate_http(request, error))
        await (answer or self.app)(scope, receive, send)

    def _find_call(self, scope: Scope) -> Callable[[Request], Awaitable[Response | None]] | None:
        """What answers the request, or finds that FastAPI has to, before it has read any of the body."""
        method, path = scope["method"], scope["path"]
        if method == "GET":
            return self._download if path.startswith(BLOBS) else None
        if method == "PUT":
            return self._upload if path.endswith("/update") else None
        return self._answer_step if method == "POST" and path.endswith("/step") else None

    async def _require_client(self, request: Request) -> str:
        return await self._coordinator.guard.require_client(read_bearer(request.headers.get("authorization")))

    async def _download(self, request: Request) -> Response | None:
        found = _BLOB.fullmatch(request.scope["path"])
        if found is None or any(name in _CONDITIONS for name, _ in request.scope["headers"]):
            return None
        owner = await self._coordinator.guard.identify(read_bearer(request.headers.get("authorization")))
        if not isinstance(owner, KnownClient):
            return None
        return answer_from_memory(self._coordinator, owner.client, found[1])

    async def _upload(self, request: Request) -> Response | None:
        found = _OF_ROUND.fullmatch(request.scope["path"])
        if found is None:
            return None
        query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        try:
            report = UpdateReport.model_validate(dict(query))
        except ValidationError:
            return None
        if len({name for name, _ in query}) < len(query):
            return None
        client = await self._require_client(request)
        return await take_update(request, self._coordinator, found[1], int(found[2]), report, client)

    async def _answer_step(self, request: Request) -> Response | None:
        found = _OF_ROUND.fullmatch(request.scope["path"])
        if found is None:
            return None
        client = await self._require_client(request)
        return await take_answer(request, self._coordinator, found[1], int(found[2]), client)
