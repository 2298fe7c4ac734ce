"""What surrounds every request: HEAD and security headers. (Limits: ``server.web.admission``.)

Plain ASGI: it costs almost nothing and never buffers a stream.
"""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HeadAsGet", "SecurityHeaders"]

CONTENT = b"default-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
HEADERS = [
    (b"content-security-policy", CONTENT),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


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


def _is_blob(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/api/v1/blobs/")
