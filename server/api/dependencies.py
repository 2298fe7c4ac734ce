"""What an endpoint asks for: the coordinator's parts, and who is calling.

The functions are ``async def`` because FastAPI would run plain ones in a thread pool.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from server.coordinator import Coordinator as Parts
from server.web.open_calls import own_call
from server.web.read_notes import describe_read, describe_refusal
from server.web.security import (
    Asking,
    KnownClient,
    Owner,
    Person,
    Visit,
    is_local,
    make_key,
    read_bearer,
)
from shared.problems import Forbidden
from shared.schemas import UserRole

__all__ = [
    "Admin",
    "Anyone",
    "Client",
    "Coordinator",
    "Operator",
    "ReadRuns",
    "Reader",
    "Viewer",
    "ViewerOfAll",
    "require_visit",
]


async def _get_coordinator(request: Request) -> Parts:
    found = request.app.state.coordinator
    assert isinstance(found, Parts)
    return found


Coordinator = Annotated[Parts, Depends(_get_coordinator)]


def _scheme(name: str, description: str) -> Any:
    return Security(HTTPBearer(scheme_name=name, description=description, auto_error=False))


_CLIENT = _scheme("client", "the token that a client got when it registered")
_ADMIN = _scheme("admin", "the admin token, or that of a person whose role is admin")
_OPERATOR = _scheme("operator", "the token of a person whose role is operator, or an admin's")
_VIEWER = _scheme("viewer", "the token of any person, or the viewer token; needed unless reading is open")


async def _require_role(coordinator: Parts, request: Request, role: UserRole) -> str:
    """The actor, if it has the role on the run of the address, or on all where there is none."""
    run = request.path_params.get("run")
    owner = await coordinator.guard.identify(read_bearer(request.headers.get("authorization")))
    person = await coordinator.read_notes.require_right(owner, role, run, request)
    await _note_read(coordinator, person, request)
    return person.actor


async def _note_read(coordinator: Parts, person: Person, request: Request) -> None:
    if (note := describe_read(person, request)) is not None:
        await coordinator.read_notes.add(note)


async def _require_admin(coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _ADMIN]) -> str:
    return await _require_role(coordinator, request, UserRole.ADMIN)


async def _require_operator(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _OPERATOR]
) -> str:
    return await _require_role(coordinator, request, UserRole.OPERATOR)


async def _require_client(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _CLIENT]
) -> str:
    client = await coordinator.guard.require_client(read_bearer(request.headers.get("authorization")))
    own_call(coordinator.open_calls, request.scope, [make_key("client", client)])
    return client


async def _identify(
    coordinator: Coordinator,
    request: Request,
    _client: Annotated[Any, _CLIENT],
    _operator: Annotated[Any, _OPERATOR],
) -> Owner:
    return await coordinator.guard.identify(read_bearer(request.headers.get("authorization")))


def _describe_asking(coordinator: Parts, request: Request) -> Asking:
    return Asking(
        authorization=request.headers.get("authorization"),
        session=coordinator.sessions.read(request),
        is_local=is_local(request),
    )


async def _admit_reader(coordinator: Parts, request: Request, owner: Owner, asking: Asking) -> Owner:
    """Forbidden for a person who reads other runs only. What is read is noted, of this run or of all."""
    sessions = [make_key("session", asking.session)] if asking.session else []
    own_call(
        coordinator.open_calls, request.scope, [owner.key, *sessions], _count_seconds(coordinator, owner)
    )
    if isinstance(owner, Person):
        run = request.path_params.get("run")
        if run is not None and not owner.reads(run):
            await coordinator.read_notes.add(describe_refusal(owner, request))
            raise Forbidden(
                f"{owner.actor} may not read run {run[:63]!r}", hint="Ask an admin for the right."
            )
        await _note_read(coordinator, owner, request)
    return owner


def _count_seconds(coordinator: Parts, owner: Owner) -> float | None:
    """For how long yet; None: for as long as the token is accepted."""
    if isinstance(owner, KnownClient) or owner.until is None:
        return None
    return (owner.until - coordinator.clock()).total_seconds()


async def _require_reader(
    coordinator: Coordinator,
    request: Request,
    _client: Annotated[Any, _CLIENT],
    _viewer: Annotated[Any, _VIEWER],
) -> Owner:
    asking = _describe_asking(coordinator, request)
    owner = await coordinator.guard.require_reader(asking)
    return await _admit_reader(coordinator, request, owner, asking)


async def _find_reading_client(owner: Annotated[Owner, Depends(_require_reader)]) -> str | None:
    return owner.client if isinstance(owner, KnownClient) else None


async def _find_scope(owner: Annotated[Owner, Depends(_require_reader)]) -> frozenset[str] | None:
    return owner.runs if isinstance(owner, Person) else None


async def _find_visit(coordinator: Parts, request: Request, asking: Asking) -> Visit:
    try:
        return await coordinator.guard.require_viewer(asking)
    except Forbidden:
        client = await coordinator.guard.require_reader(asking)
        await coordinator.read_notes.add(describe_refusal(client, request))
        raise


async def require_visit(coordinator: Parts, request: Request) -> Person:
    """Who looks at a page, as ``request.state.visit`` says from now on. The problem that refuses it."""
    asking = _describe_asking(coordinator, request)
    visit = await _find_visit(coordinator, request, asking)
    await _admit_reader(coordinator, request, visit.person, asking)
    request.state.visit = visit
    return visit.person


async def _require_viewer(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _VIEWER]
) -> Person:
    return await require_visit(coordinator, request)


async def _require_viewer_of_all(
    coordinator: Coordinator, request: Request, _scheme: Annotated[Any, _VIEWER]
) -> None:
    asking = _describe_asking(coordinator, request)
    person = (await _find_visit(coordinator, request, asking)).person
    await coordinator.read_notes.require_right(person, UserRole.VIEWER, None, request)
    await _admit_reader(coordinator, request, person, asking)


Admin = Annotated[str, Depends(_require_admin)]
"""The actor, whose role is admin."""
Operator = Annotated[str, Depends(_require_operator)]
"""The actor, who is operator of the run in the address, or of all where there is none."""
Client = Annotated[str, Depends(_require_client)]
"""The id of the client whose token came."""
Anyone = Annotated[Owner, Depends(_identify)]
"""A client or a person, by the token."""
Reader = Annotated[str | None, Depends(_find_reading_client)]
"""Who reads: a client's id, which reads its own (``server.runs.client_views``); None: all."""
ReadRuns = Annotated[frozenset[str] | None, Depends(_find_scope)]
"""The only runs that the person who reads may know of; None: all."""
Viewer = Depends(_require_viewer)
"""For ``dependencies=[Viewer]``: what no client reads, because it shows all of them."""
ViewerOfAll = Depends(_require_viewer_of_all)
"""The same, and nobody who reads some runs only."""
