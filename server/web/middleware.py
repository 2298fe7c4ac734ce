"""What surrounds every request: HEAD, security headers, and a limit for bodies that are held in memory.

Plain ASGI: it costs almost nothing and never buffers a stream.
"""

from __future__ import annotations

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.web.numbers import parse_whole

__all__ = ["LARGEST_ANNOUNCED", "BodyLimit", "HeadAsGet", "SecurityHeaders"]

CONTENT = b"default-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
HEADERS = [
    (b"content-security-policy", CONTENT),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
TOO_LARGE = 413
LARGEST_ANNOUNCED = 2**63 - 1


class SecurityHeaders:
    """Pages may load only what this server sends, and nobody may put them into a frame."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


class HeadAsGet:
    """Answers HEAD as GET without the body (RFC 9110, 9.3.2); a stream ends with its headers.

    Blobs answer HEAD themselves: a file is not opened to be thrown away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or _is_blob(scope):
            await self.app(scope, receive, send)
            return
        with anyio.CancelScope() as rest:

            async def without_body(message: Message) -> None:
                if message["type"] == "http.response.body":
                    if message.get("more_body", False):
                        rest.cancel()
                    return
                await send(message)
                await send({"type": "http.response.body", "body": b""})

            await self.app({**scope, "method": "GET"}, receive, without_body)


class BodyLimit:
    """Refuses bodies over ``max_bytes``, announced or not. Uploads are streams with limits of their own.

    (Starlette's own limit answers with plain text, whatever the application says.)
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_upload(scope):
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        announced = parse_whole(length, LARGEST_ANNOUNCED)
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            if announced is None or announced > self.max_bytes:
                raise HTTPException(TOO_LARGE)
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                raise HTTPException(TOO_LARGE)
            return message

        await self.app(scope, limited, send)


def _is_upload(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "PUT" and (path.endswith("/update") or _is_blob(scope))


def _is_blob(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/api/v1/blobs/")
