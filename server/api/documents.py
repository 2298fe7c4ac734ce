"""What the OpenAPI document says of every call: what a refusal looks like, what an address may contain."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from shared.schemas import DIGEST_PATTERN

__all__ = [
    "REFUSALS",
    "SLUG",
    "ClientId",
    "DigestInPath",
    "Number",
    "ProblemDocument",
    "RunId",
    "as_json",
    "make_router",
    "name_next_page",
]

SLUG = r"^[a-z0-9][a-z0-9._-]{0,62}$"

RunId = Annotated[str, Path(pattern=SLUG, description="the run's name")]
ClientId = Annotated[str, Path(pattern=SLUG, description="the client's id")]
Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="the round; 0 is the initial model")]
DigestInPath = Annotated[str, Path(pattern=DIGEST_PATTERN, description="SHA-256 of the file, hexadecimal")]


def as_json(body: BaseModel) -> Response:
    """The body as it is. Returned as a model, FastAPI would validate it again, at a cost for many polls."""
    return Response(body.model_dump_json(), media_type="application/json")


def name_next_page(request: Request, response: Response, **cursor: int) -> None:
    """In the header Link (RFC 8288), relative to the host."""
    target = request.url.include_query_params(**cursor)
    response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'


class ProblemDocument(BaseModel):
    """RFC 9457. ``code`` is one of the catalogue at ``/problems``; further members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = Field("", description="what to do")


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": _problem("The request cannot be granted; the body says why and what to do"),
    "5XX": _problem("The coordinator cannot answer now"),
}


def make_router(tag: str, prefix: str = "/api/v1") -> APIRouter:
    """For the calls of one noun."""
    return APIRouter(prefix=prefix, tags=[tag], responses=REFUSALS)
