"""What the endpoints work with: the parts of one coordinator process, made once by ``server.app``."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from cachetools import LRUCache
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from server.blobs import BlobStore
from server.blobs.cache import BlobCache
from server.blobs.integrity import BlobIntegrity
from server.database.step.facts import Facts
from server.database.store import Store
from server.lifecycle.events import Event
from server.lifecycle.machine import Decision
from server.monitoring.metrics import Telemetry
from server.runs.layout import Expected, expected_of
from server.runs.presence import Presence
from server.runs.runner import Rounds
from server.settings import Settings
from server.threads import Threads
from server.wakeups.hub import Hub
from server.web.grants import DownloadGrants
from server.web.security import Guard, bearer

__all__ = ["Admin", "Client", "ClientOrAdmin", "Coordinator", "Here", "Reader", "here"]

REMEMBERED_RUNS = 64
log = logging.getLogger("feddisco")


@dataclass(frozen=True)
class Coordinator:
    """Everything that lives as long as the process. Endpoints get it as ``Here``."""

    settings: Settings
    clock: Callable[[], dt.datetime]
    store: Store
    blobs: BlobStore
    hub: Hub
    threads: Threads
    guard: Guard
    telemetry: Telemetry
    rounds: Rounds
    integrity: BlobIntegrity
    presence: Presence
    grants: DownloadGrants = field(default_factory=DownloadGrants)
    blob_cache: BlobCache = field(default_factory=BlobCache)
    _expected: LRUCache[str, Expected] = field(default_factory=lambda: LRUCache(REMEMBERED_RUNS))

    async def commit(self, run: str, event: Event, *, actor: str, facts: Facts | None = None) -> Decision:
        """One transition as one transaction; its effects are carried out even if the caller goes away."""
        return await self.threads.run(self.rounds.commit, run, event, actor=actor, facts=facts)

    async def record(
        self, kind: str, *, run: str | None, actor: str, detail: dict[str, Any], **where: Any
    ) -> None:
        """An entry of the event log outside a transition."""
        await self.threads.run(
            self.store.record, kind, run=run, actor=actor, detail=detail, now=self.clock(), **where
        )
        self.hub.announce(run)

    async def expected(self, run: str) -> Expected:
        """What updates of the run must look like: fixed at its creation, so remembered."""
        known = self._expected.get(run)
        if known is None:
            view = await self.threads.run(self.store.run_view, run, self.clock())
            known = self._expected[run] = await self.threads.run_long(expected_of, view)
        return known

    def close(self) -> None:
        """Let threads finish; nothing is half done afterwards."""
        self.hub.close()
        self.rounds.close()
        self.threads.close()  # also what a cancelled task had begun there: it uses the database
        self.presence.flush()
        self.store.engine.dispose()


# Dependencies are `async def`: FastAPI would run plain functions in its thread pool.


async def here(request: Request) -> Coordinator:
    found = request.app.state.coordinator
    assert isinstance(found, Coordinator)
    return found


Here = Annotated[Coordinator, Depends(here)]


def _scheme(name: str, description: str) -> Any:
    return Security(HTTPBearer(scheme_name=name, description=description, auto_error=False))


_CLIENT = _scheme("client", "the token that a client got at registration")
_ADMIN = _scheme("admin", "the operator's token")
_READER = _scheme("viewer", "only if the coordinator has a viewer token")


async def _admin(coordinator: Here, request: Request, _scheme: Annotated[Any, _ADMIN]) -> str:
    return await coordinator.guard.admin(bearer(request.headers.get("authorization")))


async def _client(coordinator: Here, request: Request, _scheme: Annotated[Any, _CLIENT]) -> str:
    return await coordinator.guard.client(bearer(request.headers.get("authorization")))


async def _client_or_admin(
    coordinator: Here, request: Request, _client: Annotated[Any, _CLIENT], _admin: Annotated[Any, _ADMIN]
) -> str | None:
    return await coordinator.guard.client_or_admin(bearer(request.headers.get("authorization")))


async def _reader(coordinator: Here, request: Request, _scheme: Annotated[Any, _READER]) -> None:
    await coordinator.guard.reader(request.headers.get("authorization"))


Admin = Annotated[str, Depends(_admin)]
Client = Annotated[str, Depends(_client)]
ClientOrAdmin = Annotated[str | None, Depends(_client_or_admin)]
Reader = Depends(_reader)
