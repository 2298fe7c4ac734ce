"""Clients and the join tokens that let them in."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import Path, Request

from server.api.dependencies import Admin, Coordinator, Operator
from server.api.documents import ClientId, make_router
from server.database.join_tokens import ClientGrant
from server.runs.enrolment import check_protocol
from server.web.security import hash_token, make_key, make_token, read_bearer
from shared.schemas import (
    ClientView,
    Credential,
    Erasure,
    IdentityPin,
    JoinToken,
    JoinTokenRequest,
    JoinTokenView,
    Registration,
)
from shared.versions import VERSION

router = make_router("clients")
TokenId = Annotated[int, Path(ge=1, le=2**53)]


@router.post("/clients", status_code=201)
async def register(body: Registration, coordinator: Coordinator, request: Request) -> Credential:
    """Register a client with a join token. The client's own token is in the answer, and never shown again.

    Asked again with the same ``token``, the answer is the same and the join token is not used up further.
    """
    join_hash = hash_token(read_bearer(request.headers.get("authorization")))
    check_protocol(body)
    token = body.token or make_token()
    client = await coordinator.threads.run(
        coordinator.store.register,
        body.name,
        hash_token(token),
        body.version,
        coordinator.clock(),
        join_hash=join_hash,
        identity=body.identity,
    )
    coordinator.guard.remember(token)
    coordinator.hub.announce(None)
    return Credential(client=client, token=token, version=VERSION)


@router.get("/clients")
async def list_clients(coordinator: Coordinator, _actor: Operator) -> list[ClientView]:
    """All clients, including revoked ones."""
    return list(await coordinator.threads.run(coordinator.store.clients))


@router.put("/clients/{client}/identity", status_code=204)
async def pin_identity(client: ClientId, body: IdentityPin, coordinator: Coordinator, admin: Admin) -> None:
    """Let the name be registered under this identity key only, which its site has read out."""
    pin, now = coordinator.store.pin_identity, coordinator.clock()
    await coordinator.threads.run(pin, client, body.fingerprint, admin, now)


@router.delete("/clients/{client}", status_code=204)
async def revoke(client: ClientId, coordinator: Coordinator, actor: Operator) -> None:
    """Revoke a client's token. It leaves every run; updates that were accepted stay in their rounds."""
    await coordinator.threads.run(coordinator.enrolments.revoke, client, actor)
    coordinator.end_access(make_key("client", client))
    coordinator.hub.wake([client])
    coordinator.hub.announce(None)


@router.post("/clients/{client}/erase")
async def erase(client: ClientId, coordinator: Coordinator, admin: Admin) -> Erasure:
    """Erase a client that withdraws: token, name, words, files. Its numbers in ledgers stay, nameless."""
    erasure = await coordinator.threads.run_long(coordinator.removal.erase, client, admin)
    coordinator.end_access(make_key("client", client))
    coordinator.hub.wake([client])
    coordinator.hub.announce(None)
    return erasure


@router.post("/join-tokens", status_code=201)
async def create_join_token(body: JoinTokenRequest, coordinator: Coordinator, actor: Operator) -> JoinToken:
    """Create a join token. It is in the answer, and never shown again.

    Address and fingerprint are what a join code holds beside it.
    """
    token, now = make_token(), coordinator.clock()
    expires_at = None if body.valid_seconds is None else now + dt.timedelta(seconds=body.valid_seconds)
    grant = ClientGrant(body.role, body.group, body.name)
    add = coordinator.store.add_join_token
    made = await coordinator.threads.run(
        add, hash_token(token), body.uses, expires_at, now, actor=actor, grant=grant
    )
    entrance = coordinator.entrance
    return JoinToken(
        id=made,
        token=token,
        expires_at=expires_at,
        address=entrance.url,
        fingerprint=entrance.fingerprint,
        **body.model_dump(exclude={"valid_seconds"}),
    )


@router.get("/join-tokens")
async def list_join_tokens(coordinator: Coordinator, _actor: Operator) -> list[JoinTokenView]:
    """All join tokens, without the tokens themselves."""
    rows = await coordinator.threads.run(coordinator.store.join_tokens)
    return [JoinTokenView.model_validate(row, from_attributes=True) for row in rows]


@router.delete("/join-tokens/{token}", status_code=204)
async def revoke_join_token(token: TokenId, coordinator: Coordinator, actor: Operator) -> None:
    """Revoke a join token. Clients that joined with it stay."""
    await coordinator.threads.run(coordinator.enrolments.revoke_join_token, token, actor)
