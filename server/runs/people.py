"""People with tokens: made, replaced, revoked. On a thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from server.database.store import Store
from server.revocations import Revocations
from shared.problems import NotFound
from shared.schemas import UserRequest, UserView

__all__ = ["People"]


@dataclass(frozen=True)
class People:
    """Hashes of tokens that must never be accepted again are noted outside the database first."""

    store: Store
    revocations: Revocations
    clock: Callable[[], dt.datetime]

    def add(self, request: UserRequest, token_hash: str, actor: str) -> None:
        """Raises NameTaken, also where the name was one of somebody who was revoked."""
        self.store.add_user(request, token_hash, actor, self.clock())

    def renew(self, name: str, token_hash: str, actor: str) -> UserView:
        """Raises NotFound."""
        now = self.clock()
        before = self.store.user(name)
        self.store.renew_user(name, token_hash, actor, now)
        if before is None:
            raise NotFound(f"there is no user {name!r}")
        self.revocations.add(before.token_hash, "user, renewed", now)
        return before.user

    def revoke(self, name: str, actor: str) -> None:
        """Raises NotFound."""
        now = self.clock()
        if (before := self.store.user(name)) is not None:
            self.revocations.add(before.token_hash, "user", now)
        self.store.revoke_user(name, actor, now)
