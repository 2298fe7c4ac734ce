"""What an endpoint asks for: the coordinator's parts, and who is calling.

The functions are ``async def`` because FastAPI would run plain ones in a thread pool.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from server.coordinator import Coordinator as Parts
from server.web.security import Asking, is_local, read_bearer

__all__ = ["Admin", "Client", "ClientOrAdmin", "Coordinator", "Reader", "Viewer"]


async def _get_coordinator(request: Request) -> Parts:
    found = request.app.state.coordinator
    assert isinstance(found, Parts)
    return found


Coordinator = Annotated[Parts, Depends(_get_coordinator)]


def _scheme(name: str, description: str) -> Any:
    return Security(HTTPBearer(scheme_name=name, description=description, auto_error=False))


_CLIENT = _scheme("client", "the token that a client got when it registered")
_ADMIN = _scheme("admin", "the operator's token")
_VIEWER = _scheme("viewer", "the viewer token; needed unless reading is open")


async def _require_admin(coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _ADMIN]) -> str:
    return await coordinator.guard.require_admin(read_bearer(request.headers.get("authorization")))


async def _require_client(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _CLIENT]
) -> str:
    return await coordinator.guard.require_client(read_bearer(request.headers.get("authorization")))


async def _require_client_or_admin(
    coordinator: Coordinator,
    request: Request,
    _client: Annotated[Any, _CLIENT],
    _admin: Annotated[Any, _ADMIN],
) -> str | None:
    return await coordinator.guard.require_client_or_admin(read_bearer(request.headers.get("authorization")))


def _describe_asking(coordinator: Parts, request: Request) -> Asking:
    return Asking(
        authorization=request.headers.get("authorization"),
        session=coordinator.sessions.read(request),
        is_local=is_local(request),
    )


async def _require_reader(
    coordinator: Coordinator,
    request: Request,
    _client: Annotated[Any, _CLIENT],
    _viewer: Annotated[Any, _VIEWER],
) -> str | None:
    return await coordinator.guard.require_reader(_describe_asking(coordinator, request))


async def _require_viewer(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _VIEWER]
) -> None:
    await coordinator.guard.require_viewer(_describe_asking(coordinator, request))


Admin = Annotated[str, Depends(_require_admin)]
"""The actor "admin"."""
Client = Annotated[str, Depends(_require_client)]
"""The id of the client whose token came."""
ClientOrAdmin = Annotated[str | None, Depends(_require_client_or_admin)]
"""The client's id, None for the admin."""
Reader = Annotated[str | None, Depends(_require_reader)]
"""Who reads: a client's id, which reads its own (``server.runs.client_views``); None: all."""
Viewer = Depends(_require_viewer)
"""For ``dependencies=[Viewer]``: what no client reads, because it shows all of them."""
