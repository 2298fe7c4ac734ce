"""Tokens with which clients register. Only their hashes come here."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa

from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import join_tokens
from shared.problems import NotFound, WrongToken

__all__ = ["JoinTokenRow", "add_join_token", "list_join_tokens", "revoke_join_token", "use_join_token"]


@dataclass(frozen=True, slots=True)
class JoinTokenRow:
    """A join token without the token, of which only a hash is kept. ``uses_left`` None: without limit."""

    id: int
    uses_left: int | None
    created_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None


def add_join_token(
    connection: Writing,
    token_hash: str,
    uses: int | None,
    expires_at: dt.datetime | None,
    *,
    actor: str,
    now: dt.datetime,
) -> int:
    """Its id. A token that is known (from the settings, at the next start) is left as it is."""
    row = {"token_hash": token_hash, "uses_left": uses, "created_at": now, "expires_at": expires_at}
    is_new = connection.insert_new(join_tokens, row, "token_hash") == 1
    known = sa.select(join_tokens.c.id).where(join_tokens.c.token_hash == token_hash)
    number = int(connection.select(known).scalar_one())
    if not is_new:
        return number
    detail = {"id": number, "uses": uses, "expires_at": expires_at.isoformat() if expires_at else None}
    add_events(connection, [{"kind": "join_token_added", "detail": detail}], actor=actor, now=now)
    return number


def use_join_token(connection: Writing, token_hash: str, now: dt.datetime) -> None:
    """Counts one use; raises :class:`WrongToken` if it is unknown, revoked, expired or used up."""
    usable = sa.and_(
        join_tokens.c.token_hash == token_hash,
        join_tokens.c.revoked_at.is_(None),
        sa.or_(join_tokens.c.expires_at.is_(None), join_tokens.c.expires_at > now),
        sa.or_(join_tokens.c.uses_left.is_(None), join_tokens.c.uses_left > 0),
    )
    used = connection.execute(
        join_tokens.update().where(usable).values(uses_left=join_tokens.c.uses_left - 1)
    )
    if used.rowcount != 1:
        raise WrongToken(
            "the join token is unknown here, revoked, expired or used up",
            hint="Ask whoever runs the coordinator for a new one.",
        )


def list_join_tokens(connection: Reading) -> list[JoinTokenRow]:
    """Oldest first."""
    statement = sa.select(
        join_tokens.c.id,
        join_tokens.c.uses_left,
        join_tokens.c.created_at,
        join_tokens.c.expires_at,
        join_tokens.c.revoked_at,
    ).order_by(join_tokens.c.id)
    return [JoinTokenRow(*row) for row in connection.select(statement)]


def revoke_join_token(connection: Writing, token: int, actor: str, now: dt.datetime) -> None:
    """Raises :class:`NotFound`; revoked again, nothing happens."""
    one = join_tokens.c.id == token
    if connection.select(sa.select(join_tokens.c.id).where(one)).scalar() is None:
        raise NotFound(f"there is no join token {token}", hint="GET /api/v1/join-tokens lists them.")
    unrevoked = sa.and_(one, join_tokens.c.revoked_at.is_(None))
    if connection.execute(join_tokens.update().where(unrevoked).values(revoked_at=now)).rowcount == 1:
        detail = {"id": token}
        add_events(connection, [{"kind": "join_token_revoked", "detail": detail}], actor=actor, now=now)
