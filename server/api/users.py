"""People, and the tokens with which they sign in and act."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from server.api.dependencies import Admin, Coordinator
from server.api.documents import SLUG, make_router
from server.web.security import hash_token, make_key, make_token
from shared.schemas import UserRequest, UserToken, UserView

router = make_router("users")
UserName = Annotated[str, Path(pattern=SLUG, description="the person's name")]


@router.post("/users", status_code=201)
async def add_user(body: UserRequest, coordinator: Coordinator, admin: Admin) -> UserToken:
    """Make a token for a person. It is in the answer, and never shown again."""
    token = make_token()
    await coordinator.threads.run(coordinator.people.add, body, hash_token(token), admin)
    coordinator.guard.remember(token)
    return UserToken(token=token, **body.model_dump())


@router.get("/users")
async def list_users(coordinator: Coordinator, _admin: Admin) -> list[UserView]:
    """All people who have or had a token."""
    return await coordinator.threads.run(coordinator.store.users)


@router.post("/users/{name}/token")
async def renew_user(name: UserName, coordinator: Coordinator, admin: Admin) -> UserToken:
    """Replace a person's token; the one before ends at once, with all that is open by it.

    Who was revoked is let in again.
    """
    token = make_token()
    view = await coordinator.threads.run(coordinator.people.renew, name, hash_token(token), admin)
    coordinator.end_access(make_key("user", name))
    return UserToken(name=name, role=view.role, runs=view.runs, token=token)


@router.delete("/users/{name}", status_code=204)
async def revoke_user(name: UserName, coordinator: Coordinator, admin: Admin) -> None:
    """Revoke a person's token: sessions, streams and all else that is open by it end at once."""
    await coordinator.threads.run(coordinator.people.revoke, name, admin)
    coordinator.end_access(make_key("user", name))
