"""Long polls and event streams that are open, by who has opened them: a revocation ends them at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.web.calls import Call, classify
from shared.problems import Problem, RevokedToken

__all__ = ["OpenCall", "OpenCalls", "Revocable", "own_call"]

STATE = "feddisco.open_call"


class OpenCall:
    """One request that may take long; ``keys`` (``server.web.security.make_key``): whose end is its own."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.cancel_scope = anyio.CancelScope()


class OpenCalls:
    """All of one process. Methods run on the event loop."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, set[OpenCall]] = defaultdict(set)

    def add(self, call: OpenCall, keys: Iterable[str]) -> None:
        for key in keys:
            call.keys.add(key)
            self._calls[key].add(call)

    def remove(self, call: OpenCall) -> None:
        for key in call.keys:
            self._calls[key].discard(call)
            if not self._calls[key]:
                del self._calls[key]

    def end(self, key: str) -> None:
        """What is open under this key ends now: a stream is cut, a poll answered 401."""
        for call in list(self._calls.get(key, ())):
            call.cancel_scope.cancel()


def own_call(calls: OpenCalls, scope: Scope, keys: Iterable[str], seconds: float | None = None) -> None:
    """Who asks is known now: the request ends with these keys, if it is one that may take long.

    Also after so many seconds, when a session is over.
    """
    call = scope.get(STATE)
    if isinstance(call, OpenCall):
        calls.add(call, keys)
        if seconds is not None:
            call.cancel_scope.deadline = anyio.current_time() + seconds


class Revocable:
    """Runs polls and streams so that :meth:`OpenCalls.end` can end them."""

    def __init__(
        self, app: ASGIApp, *, calls: OpenCalls, respond: Callable[[Request, Problem], Response]
    ) -> None:
        self.app = app
        self._calls = calls
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or classify(scope["method"], scope["path"]) not in (
            Call.POLL,
            Call.STREAM,
        ):
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        call = OpenCall()
        try:
            with call.cancel_scope:
                await self.app({**scope, STATE: call}, receive, note)
        finally:
            self._calls.remove(call)
        if not call.cancel_scope.cancelled_caught:
            return
        if has_begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            problem = RevokedToken("the token was revoked meanwhile", hint="Ask the coordinator's operator.")
            await self._respond(Request(scope), problem)(scope, receive, send)
