"""The one place that turns every refusal and fault into ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from cachetools import TTLCache
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shared.problems import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Problem,
    RangeNotSatisfiable,
    RequestTimeout,
    ServiceFault,
    StorageUnavailable,
    TooLarge,
    TooManyRequests,
    Unauthorised,
    UnsupportedMediaType,
)
from shared.value_faults import list_faults

__all__ = [
    "MEDIA_TYPE",
    "Respond",
    "describe_invalid",
    "install",
    "make_responder",
    "render",
    "translate_http",
]

MEDIA_TYPE = "application/problem+json"
SECRET, HIDDEN = "token", "(not shown)"
"""The field whose content no answer repeats."""

SHOWN = 200
RETRY_SECONDS = "2"

PUBLIC_HINT = "Try again later; the coordinator's log has the reason."
SAID_AGAIN_SECONDS = 60.0
"""After so long the same fault is another line of the log."""

log = logging.getLogger("feddisco.errors")


def render(problem: Problem) -> Response:
    headers: dict[str, str] = {}
    if isinstance(problem, Unauthorised):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(problem, ServiceFault):
        headers["Retry-After"] = RETRY_SECONDS
    if isinstance(problem, TooManyRequests):
        headers["Retry-After"] = str(problem.extra.get("retry_after_seconds", RETRY_SECONDS))
    if isinstance(problem, RangeNotSatisfiable) and "bytes" in problem.extra:
        headers["Content-Range"] = f"bytes */{problem.extra['bytes']}"
    return JSONResponse(problem.as_json(), problem.status, headers, media_type=MEDIA_TYPE)


def describe_invalid(errors: Sequence[Any]) -> InvalidRequest:
    """Pydantic's errors as one sentence with field and value, and as a list for programs."""
    found = [
        {
            "field": ".".join(map(str, error["loc"])),
            "message": error["msg"],
            "received": HIDDEN if SECRET in error["loc"] else _shorten(error.get("input")),
        }
        for error in list_faults(errors)
    ]
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    detail = f"{first['field']}: {first['message']}, received {first['received']}{more}"
    return InvalidRequest(detail, hint="See /docs for what the call takes.", errors=found[:50])


def _shorten(value: Any) -> str:
    text = repr({**value, SECRET: HIDDEN} if isinstance(value, dict) and SECRET in value else value)
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates have no UTF-8 form


def translate_http(request: Request, error: HTTPException) -> Problem:
    """What Starlette, FastAPI and the bounds of bodies refuse, in our words."""
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            return NotFound(
                f"there is nothing at {request.url.path}", hint="See /docs for the calls there are."
            )
        case 405:
            return MethodNotAllowed(
                f"{where} is not possible", hint="See /docs for the methods of this address."
            )
        case 408:
            return RequestTimeout(
                f"the body of {where} stopped coming", hint="Send it again; look at the network on the way."
            )
        case 413:
            return TooLarge(f"the body of {where} is larger than allowed")
        case 415:
            return UnsupportedMediaType(f"the body of {where} is of a type that is not read here")
        case _:
            return InvalidRequest(f"{where}: {error.detail}")


Respond = Callable[[Request, Problem], Response]


def make_responder(
    count: Callable[[str], None],
    page: Callable[[Request, Problem, Response], Response | None],
) -> Respond:
    """What answers a problem. ``count`` is called with each code; ``page`` may answer with a page instead.

    Of a fault of the storage the log has what the operator needs, and the answer what anybody may know.
    """
    said: TTLCache[str, None] = TTLCache(100, SAID_AGAIN_SECONDS)

    def respond(request: Request, problem: Problem) -> Response:
        count(problem.code)
        if isinstance(problem, StorageUnavailable):
            if problem.detail not in said:
                said[problem.detail] = None
                log.error("%s %s: %s", request.method, request.url.path, problem)
            problem = StorageUnavailable(problem.public, hint=PUBLIC_HINT)
        answer = render(problem)
        return page(request, problem, answer) or answer

    return respond


def install(app: FastAPI, respond: Respond) -> None:
    """Have every refusal and fault answered by ``respond``."""

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return respond(request, error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = await on_problem(request, translate_http(request, error))
        for name, value in (error.headers or {}).items():
            answer.headers[name] = value
        return answer

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await on_problem(request, describe_invalid(error.errors()))

    async def on_fault(request: Request, error: Exception) -> Response:
        reference = secrets.token_hex(4)
        log.error("unexpected fault %s in %s %s", reference, request.method, request.url.path, exc_info=error)
        hint = f"The coordinator's log has the reason under the reference {reference}."
        return await on_problem(request, Problem("the coordinator met an unexpected fault", hint=hint))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_fault)
