"""Requests for work, answered before everything else is asked: thousands of clients wait in them.

Plain ASGI, around all other layers but that for unexpected faults. A poll that waits is one coroutine
and no second task, and what the layers do for every request (admission, rates and places, the end of
a revoked token's requests, headers) is done here by calling the same parts. What looks different from a
worker's poll goes on to FastAPI, which declares the call (``server.api.work``) and answers it from the same
function.
"""

from __future__ import annotations

import re
from functools import lru_cache

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.work import LONGEST_SECONDS, find_assignment
from server.coordinator import Coordinator
from server.web.admission import Visitor
from server.web.errors import Respond
from server.web.middleware import HEADERS
from server.web.protocol import LINE, Line
from server.web.security import require_client
from shared.problems import Problem
from shared.schemas import Assignment, Wait

__all__ = ["DirectPolls"]

PATH = "/api/v1/work"
REASONS = 1024
"""Sentences that are kept as they are sent."""
_WAIT = re.compile(rb"wait=([0-9]{1,2}(?:\.[0-9]{1,6})?)")
_BODY = (b"content-length", b"transfer-encoding")


class DirectPolls:
    """Around the application of a coordinator; ``respond`` answers problems."""

    def __init__(self, app: ASGIApp, *, coordinator: Coordinator, respond: Respond) -> None:
        self.app = app
        self._coordinator = coordinator
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = _find_seconds(scope)
        if seconds is None:
            await self.app(scope, receive, send)
            return
        gate = self._coordinator.gate
        try:
            visitor = await gate.admit_poll(scope)
        except Problem as problem:
            await self._refuse(problem, scope, receive, send)
            return
        try:
            body = await self._answer(visitor, scope[LINE], seconds)
        except Problem as problem:
            gate.note_answer(visitor, problem.status)
            await self._refuse(problem, scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": _describe(len(body))})
            await send({"type": "http.response.body", "body": body})
        finally:
            gate.leave_poll(visitor)

    async def _answer(self, visitor: Visitor, line: Line, seconds: float) -> bytes:
        assert visitor.owner is not None  # a poll needs a token
        client = require_client(visitor.owner)
        hub = self._coordinator.hub
        waiter = hub.enter(client)
        line.on_cut = waiter.leave  # a poll that is cut on its way holds no place here
        if line.is_cut:
            waiter.leave()
        try:
            return _render(await find_assignment(self._coordinator, client, waiter, seconds))
        finally:
            line.on_cut = None
            hub.leave(client, waiter)

    async def _refuse(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self._respond(Request(scope), problem)(scope, receive, with_headers)


def _find_seconds(scope: Scope) -> float | None:
    """How long a worker's poll may wait; None: it is another request, or has something unusual about it."""
    if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "GET" or LINE not in scope:
        return None
    query = scope["query_string"]
    asked = _WAIT.fullmatch(query)
    if (asked is None and query) or any(name in _BODY for name, _ in scope["headers"]):
        return None
    seconds = 0.0 if asked is None else float(asked[1])
    return seconds if seconds <= LONGEST_SECONDS else None


def _render(assignment: Assignment) -> bytes:
    return _render_wait(assignment.reason) if isinstance(assignment, Wait) else _to_json(assignment)


@lru_cache(REASONS)
def _render_wait(reason: str) -> bytes:
    return _to_json(Wait(reason=reason))


def _to_json(assignment: Assignment) -> bytes:
    return assignment.model_dump_json().encode()


@lru_cache(REASONS)
def _describe(length: int) -> list[tuple[bytes, bytes]]:
    content = (b"content-length", b"%d" % length), (b"content-type", b"application/json")
    return [*content, *HEADERS]
