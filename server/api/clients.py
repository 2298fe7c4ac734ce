"""Clients and the join tokens that let them in."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import APIRouter, Path, Request

from server.api.documents import ClientId
from server.coordinator import Admin, Here
from server.version import VERSION
from server.web.security import bearer, hash_token, new_token
from shared.problems import IncompatibleVersion
from shared.schemas import (
    PROTOCOL,
    ClientView,
    Credential,
    JoinToken,
    JoinTokenRequest,
    JoinTokenView,
    Registration,
)

router = APIRouter(tags=["clients"])
TokenId = Annotated[int, Path(ge=1, le=2**53)]


@router.post("/clients", status_code=201)
async def register(body: Registration, here: Here, request: Request) -> Credential:
    """Register a client with a join token. The client's own token is in the answer, and never shown again.

    Asked again with the same ``token``, the answer is the same and no use of the join token is counted.
    """
    join_hash = hash_token(bearer(request.headers.get("authorization")))
    if body.protocol != PROTOCOL:
        raise IncompatibleVersion(
            f"the worker (version {body.version or 'unknown'}) speaks protocol {body.protocol}, "
            f"this coordinator (version {VERSION}) speaks protocol {PROTOCOL}",
            hint="Install the same version on both sides.",
            protocol=PROTOCOL,
            version=VERSION,
        )
    token = body.token or new_token()
    client = await here.threads.run(
        here.store.register, body.name, hash_token(token), body.version, here.clock(), join_hash=join_hash
    )
    here.hub.announce(None)
    return Credential(client=client, token=token, version=VERSION)


@router.get("/clients")
async def clients(here: Here, _admin: Admin) -> list[ClientView]:
    """All clients, revoked ones too."""
    return list(await here.threads.run(here.store.clients))


@router.delete("/clients/{client}", status_code=204)
async def revoke(client: ClientId, here: Here, admin: Admin) -> None:
    """Revoke a client's token. It leaves every run; updates that were accepted stay in their rounds."""
    decisions = await here.threads.run(here.store.revoke, client, admin, here.clock())
    here.guard.forget(client)
    for run, decision in decisions:
        here.rounds.carry_out(run, decision)
    here.hub.wake([client])
    here.hub.announce(None)


@router.post("/join-tokens", status_code=201)
async def invite(body: JoinTokenRequest, here: Here, _admin: Admin) -> JoinToken:
    """Make a join token. It is in the answer, and never shown again."""
    token, now = new_token(), here.clock()
    expires_at = None if body.valid_seconds is None else now + dt.timedelta(seconds=body.valid_seconds)
    made = await here.threads.run(here.store.add_join_token, hash_token(token), body.uses, expires_at, now)
    return JoinToken(id=made, token=token, uses=body.uses, expires_at=expires_at)


@router.get("/join-tokens")
async def invitations(here: Here, _admin: Admin) -> list[JoinTokenView]:
    """All join tokens, without the tokens themselves."""
    rows = await here.threads.run(here.store.join_tokens)
    return [JoinTokenView.model_validate(row, from_attributes=True) for row in rows]


@router.delete("/join-tokens/{token}", status_code=204)
async def uninvite(token: TokenId, here: Here, admin: Admin) -> None:
    """Revoke a join token. Clients that joined with it stay."""
    await here.threads.run(here.store.revoke_join_token, token, admin, here.clock())
