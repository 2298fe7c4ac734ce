"""Who read what of the clients, and who was refused what: for the audit log, once an hour each."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache
from starlette.requests import Request

from server.web.security import ANYBODY, KnownClient, Owner, Person, check_right
from shared.problems import Forbidden, ServiceFault
from shared.schemas import UserRole

__all__ = ["Note", "ReadNotes", "describe_read", "describe_refusal"]

API = "/api/v1"
NOTED_SECONDS = 3600.0
NOTED_ENTRIES = 50_000
NOT_OF_CLIENTS = frozenset(
    {
        "/create",
        "/docs",
        "/problems",
        "/users",
        "/users/add",
        "/users/{name}/do/renew",
        "/users/{name}/do/revoke",
        "/metrics",
        "/favicon.ico",
        "/api/v1/audit",
        "/api/v1/users",
    }
)
"""Addresses of which nobody learns anything of a client, or figures alone."""

log = logging.getLogger("feddisco.audit")


@dataclass(frozen=True, slots=True)
class Note:
    """``what``: the address as declared, like ``/runs/{run}``; ``beside``: of which file, from where."""

    action: str
    actor: str
    what: str
    run: str | None = None
    client: str | None = None
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def detail(self) -> dict[str, Any]:
        return {"address": self.what, **dict(self.beside)}


class ReadNotes:
    """``write`` enters a note. What was noted within :data:`NOTED_SECONDS` is not noted again."""

    def __init__(
        self,
        write: Callable[[Note], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._noted: TTLCache[Note, None] = TTLCache(NOTED_ENTRIES, NOTED_SECONDS, timer=monotonic)

    async def add(self, note: Note) -> None:
        """A database that refuses keeps nobody from reading: it is only logged."""
        if note in self._noted:
            return
        self._noted[note] = None
        try:
            await self._write(note)
        except BaseException as error:
            self._noted.pop(note, None)  # after any error, also the end of the call: the next one notes it
            if not isinstance(error, ServiceFault):
                raise
            log.error("not in the audit log: %s %s %s: %s", note.actor, note.action, note.what, error.detail)

    async def require_right(self, owner: Owner, role: UserRole, run: str | None, request: Request) -> Person:
        """As :func:`check_right`; who is refused is noted with what was tried."""
        try:
            return check_right(owner, role, run)
        except Forbidden:
            await self.add(describe_refusal(owner, request))
            raise


def describe_refusal(owner: Owner, request: Request) -> Note:
    """What somebody with a token tried who may not do it."""
    actor = owner.client if isinstance(owner, KnownClient) else owner.actor
    what = f"{request.method} {_find_route(request)}"
    return Note("refused", actor, what, run=_find_run(request))


def describe_read(person: Person, request: Request) -> Note | None:
    """What the request reads of clients; None for nothing."""
    what = _find_route(request)
    if what in NOT_OF_CLIENTS or request.method not in ("GET", "HEAD"):
        return None
    address = request.client.host if person is ANYBODY and request.client else None
    beside = (("from", address),) if address else ()
    return Note("read", person.actor, what, run=_find_run(request), beside=beside)


def _find_route(request: Request) -> str:
    """As it is declared: ``/runs/{run}``."""
    declared = str(getattr(request.scope.get("route"), "path", request.url.path))
    is_within = request.url.path.startswith(API) and not declared.startswith(API)
    return f"{API}{declared}" if is_within else declared  # a router does not know where it is included


def _find_run(request: Request) -> str | None:
    run = request.path_params.get("run")
    return None if run is None else str(run)[:63]
