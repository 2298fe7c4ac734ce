"""What surrounds every request: security headers, and a limit for bodies that are held in memory.

Plain ASGI: it costs almost nothing and never buffers a stream.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyLimit", "SecurityHeaders"]

HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
TOO_LARGE = 413


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
        announced = int(Headers(scope=scope).get("content-length", 0))
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            if announced > self.max_bytes:
                raise HTTPException(TOO_LARGE)
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                raise HTTPException(TOO_LARGE)
            return message

        await self.app(scope, limited, send)


def _is_upload(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "PUT" and (path.endswith("/update") or path.startswith("/api/v1/blobs/"))
