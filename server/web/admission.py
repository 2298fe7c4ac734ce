"""Who comes in: the token before the body, places and rates by kind of call, bodies bounded in size and time.

Plain ASGI, around the whole application: a request that is refused here has cost next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.settings import Settings
from server.web.calls import Call, brings_list, classify
from server.web.limits import Places, Rate
from server.web.numbers import LARGEST_ANNOUNCED, parse_whole
from server.web.security import (
    ADMIN,
    Asking,
    Guard,
    KnownClient,
    Owner,
    find_secret,
    is_basic,
    is_local,
    read_bearer,
)
from shared.addresses import is_loopback
from shared.problems import MissingToken, Problem, TooLarge, Unauthorised

__all__ = ["SIGN_IN", "SMALL_JSON_BYTES", "Admission", "Gate"]

SIGN_IN = "/sign-in"
"""Where a form brings a token."""
SMALL_JSON_BYTES = 2**16
"""For JSON that holds a few numbers and sentences."""
PACE_BYTES = 2**15
"""So much of a body, or its rest, has to come within ``stall_seconds``."""
REQUEST_TIMEOUT, TOO_LARGE = 408, 413
BAD_REQUEST, UNAUTHORISED, SERVER_FAULT = 400, 401, 500


@dataclass(frozen=True)
class Visitor:
    """Who asks: ``client`` is its id or the person, None without a token and for the admin token;
    ``address``: where from.

    ``brings_token``: in its header, or in the form of a page.
    """

    call: Call
    client: str | None
    address: str
    brings_token: bool
    owner: Owner | None = None
    """Of the token, where the call needs one; of reading, if it is a client."""

    @property
    def crowd(self) -> str | None:
        """The address, but for this machine's own: behind it is a proxy, or its operator."""
        return None if is_loopback(self.address) else self.address


class Gate:
    """The limits of one process. ``count`` is called with the setting of each that refuses."""

    def __init__(self, settings: Settings, guard: Guard, count: Callable[[str], None]) -> None:
        self._settings = settings
        self._guard = guard
        self._count = count
        self.places = {
            Call.POLL: _places(settings, "polls", "requests for work", "client"),
            Call.STREAM: _places(settings, "streams", "event streams", "address"),
            Call.UPLOAD: _places(settings, "uploads", "uploads", "client"),
            Call.DOWNLOAD: _places(settings, "downloads", "downloads", "client"),
        }
        self.others = _places(settings, "requests", "other requests")
        self._requests = _rate(settings, "requests", "requests")
        self._rates = {
            Call.HEARTBEAT: _rate(settings, "heartbeats", "heartbeats"),
            Call.CHANGE: _rate(settings, "changes", "messages about runs"),
            Call.UPLOAD: _rate(settings, "changes", "updates"),
        }
        self._registrations = _rate(settings, "registrations", "registrations")
        self._refused_uploads = _rate(settings, "refused_uploads", "uploads that were refused")
        self._wrong_tokens = _rate(settings, "wrong_tokens", "wrong tokens")

    async def admit(self, scope: Scope, held: ExitStack) -> Visitor:
        """Let a request in, with its place for as long as ``held``. Raises the problem that refuses it."""
        try:
            visitor = await self._identify(scope, classify(scope["method"], scope["path"]))
            self._take_tokens(visitor)
            self._check_size(scope, visitor.call)
            held.enter_context(self._hold(visitor))
        except Problem as problem:
            self._note(problem)
            raise
        return visitor

    async def admit_poll(self, scope: Scope) -> Visitor:
        """:meth:`admit` for a request for work, whose place is held until :meth:`leave_poll`."""
        try:
            visitor = await self._identify(scope, Call.POLL)
            self._take_tokens(visitor)
            self.places[Call.POLL].take(visitor.client)
        except Problem as problem:
            self._note(problem)
            raise
        return visitor

    def leave_poll(self, visitor: Visitor) -> None:
        self.places[Call.POLL].give_back(visitor.client)

    def note_answer(self, visitor: Visitor, status: int) -> None:
        """Charge what an answer says about the request: a wrong token, an upload that was refused."""
        if status == UNAUTHORISED and visitor.brings_token:
            self._wrong_tokens.charge(visitor.address)
        is_refusal = BAD_REQUEST <= status < SERVER_FAULT
        if visitor.call is Call.UPLOAD and is_refusal and visitor.client is not None:
            self._refused_uploads.charge(visitor.client)

    def longest_body(self, path: str) -> int:
        """Bytes of JSON that a call may bring."""
        return self._settings.max_json_bytes if brings_list(path) else SMALL_JSON_BYTES

    async def _identify(self, scope: Scope, call: Call) -> Visitor:
        authorization = Headers(scope=scope).get("authorization")
        token = self._find_token(scope, authorization)
        address = (scope.get("client") or ("unknown", 0))[0]
        is_sign_in = scope["method"] == "POST" and scope["path"] == SIGN_IN
        brings_token = token is not None or is_sign_in
        if brings_token and not (token is not None and self._guard.is_familiar(token)):
            self._wrong_tokens.check(address)
        try:
            owner = await self._find_owner(call, authorization)
        except MissingToken:
            raise
        except Unauthorised:
            self._wrong_tokens.charge(address)
            raise
        return Visitor(call, _name_counted(owner), address, brings_token, owner)

    def _find_token(self, scope: Scope, authorization: str | None) -> str | None:
        """One that may be a guess; where reading is open, a password is meant for a proxy in front."""
        if is_basic(authorization):
            asking = Asking(authorization, session=None, is_local=is_local(Request(scope)))
            if self._guard.is_open_to(asking):
                return None
        return find_secret(authorization)

    async def _find_owner(self, call: Call, authorization: str | None) -> Owner | None:
        """Whose token it is, where the call needs one; of reading, if it is a client's, whose rate counts."""
        if call is Call.REGISTRATION:
            await self._guard.require_join_code(read_bearer(authorization))
            return None
        if call.needs_token:
            return await self._guard.identify(read_bearer(authorization))
        try:
            owner = await self._guard.identify(read_bearer(authorization))
        except Problem:  # said by the call itself, if it asks for a token
            return None
        return owner if isinstance(owner, KnownClient) else None

    def _take_tokens(self, visitor: Visitor) -> None:
        if visitor.call is Call.REGISTRATION:
            self._registrations.take(visitor.address)
        if visitor.client is None:
            return
        self._requests.take(visitor.client)
        if visitor.call in self._rates:
            self._rates[visitor.call].take(visitor.client)
        if visitor.call is Call.UPLOAD:
            self._refused_uploads.check(visitor.client)

    def _check_size(self, scope: Scope, call: Call) -> None:
        if call is Call.UPLOAD or not call.brings_body:
            return
        longest = self.longest_body(scope["path"])
        announced = parse_whole(Headers(scope=scope).get("content-length", "0"), LARGEST_ANNOUNCED)
        if announced is None or announced > longest:
            raise TooLarge(
                f"the body of {scope['method']} {scope['path']} may have {longest} bytes",
                allowed_bytes=longest,
            )

    def _hold(self, visitor: Visitor) -> AbstractContextManager[None]:
        places = self.places.get(visitor.call, self.others)
        return places.hold(visitor.crowd if visitor.call is Call.STREAM else visitor.client)

    def _note(self, problem: Problem) -> None:
        if limit := problem.extra.get("limit"):
            self._count(limit)


def _name_counted(owner: Owner | None) -> str | None:
    """By whom places and rates are counted; None for the admin token."""
    if isinstance(owner, KnownClient):
        return owner.client
    return None if owner is None or owner is ADMIN else owner.actor


def _places(settings: Settings, name: str, what: str, each: str = "") -> Places:
    setting, setting_each = f"max_{name}", f"max_{name}_per_{each}"
    return Places(
        what,
        most=getattr(settings, setting),
        setting=setting,
        most_each=getattr(settings, setting_each) if each else None,
        setting_each=setting_each,
    )


def _rate(settings: Settings, name: str, what: str) -> Rate:
    setting = f"{name}_per_minute"
    return Rate(what, per_minute=getattr(settings, setting), setting=setting)


class Admission:
    """Asks the gate first; then the application runs with a body that is bounded in size and time."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        gate: Gate,
        stall_seconds: float,
        respond: Callable[[Request, Problem], Response],
    ) -> None:
        self.app = app
        self._gate = gate
        self._stall_seconds = stall_seconds
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with ExitStack() as held:
            try:
                visitor = await self._gate.admit(scope, held)
            except Problem as problem:
                await self._respond(Request(scope), problem)(scope, receive, send)
                return
            longest = None if visitor.call is Call.UPLOAD else self._gate.longest_body(scope["path"])

            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._gate.note_answer(visitor, message["status"])
                await send(message)

            await self.app(scope, Body(receive, longest, self._stall_seconds), note)


class Body:
    """The rest of a request's body. Called for its next message.

    What is longer than ``longest`` bytes (None: the reader sees to that) is refused with 413; where less than
    :data:`PACE_BYTES` comes within ``stall_seconds``, with 408. After its end there is no limit: what is then
    waited for is the client's disconnect.
    """

    def __init__(self, receive: Receive, longest: int | None, stall_seconds: float) -> None:
        self._receive = receive
        self._longest = longest
        self._stall_seconds = stall_seconds
        self._taken = self._paced = 0
        self._due: float | None = None
        self._ended = False

    async def __call__(self) -> Message:
        if self._ended:
            return await self._receive()
        loop = asyncio.get_running_loop()
        if self._due is None or self._taken - self._paced >= PACE_BYTES:
            self._due, self._paced = loop.time() + self._stall_seconds, self._taken
        try:
            async with asyncio.timeout_at(self._due):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(REQUEST_TIMEOUT) from None
        self._taken += len(message.get("body", b""))
        if self._longest is not None and self._taken > self._longest:
            raise HTTPException(TOO_LARGE)
        self._ended = not message.get("more_body", False)
        return message
