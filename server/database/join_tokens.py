"""Tokens with which clients register. Only their hashes come here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from server.database.events import add_events
from server.database.session import Reading, Writing
from server.database.tables import clients, join_tokens
from shared.problems import NameTaken, NotFound, WrongToken

__all__ = [
    "ANY_CLIENT",
    "ERASED",
    "ClientGrant",
    "JoinTokenRow",
    "add_join_token",
    "find_join_hash",
    "is_join_token",
    "is_name_kept",
    "is_somebodys",
    "list_join_hashes",
    "list_join_tokens",
    "list_unrevoked_tokens",
    "revoke_join_token",
    "use_join_token",
    "withdraw_join_tokens",
]


RESERVED = frozenset({"admin", "anybody", "coordinator", "viewer"})
"""Actors in the logs: no client may be taken for one of them."""
ERASED = "erased-"
"""How names begin of those who were erased."""


@dataclass(frozen=True, slots=True)
class ClientGrant:
    """What a join token makes of the client that registers with it; None: nothing in particular."""

    role: str | None = None
    group: str | None = None
    name: str | None = None


ANY_CLIENT = ClientGrant()


@dataclass(frozen=True, slots=True)
class JoinTokenRow:
    """A join token without the token, of which only a hash is kept. ``uses_left`` None: without limit."""

    id: int
    uses_left: int | None
    created_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None
    role: str | None
    group: str | None
    name: str | None


def add_join_token(
    connection: Writing,
    token_hash: str,
    uses: int | None,
    expires_at: dt.datetime | None,
    grant: ClientGrant = ANY_CLIENT,
    *,
    actor: str,
    now: dt.datetime,
) -> int:
    """Its id. A token that is known (from the settings, at the next start) is left as it is.

    Raises :class:`NameTaken` if its name is a client's already, or kept for another token's.
    """
    if grant.name is not None:
        _check_free(connection, grant.name, now)
    given = {name: value for name, value in asdict(grant).items() if value is not None}
    row = {"token_hash": token_hash, "uses_left": uses, "created_at": now, "expires_at": expires_at, **given}
    is_new = connection.insert_new(join_tokens, row, "token_hash") == 1
    known = sa.select(join_tokens.c.id).where(join_tokens.c.token_hash == token_hash)
    number = int(connection.select(known).scalar_one())
    if not is_new:
        return number
    until = expires_at.isoformat() if expires_at else None
    detail = {"id": number, "uses": uses, "expires_at": until, **given}
    add_events(connection, [{"kind": "join_token_added", "detail": detail}], actor=actor, now=now)
    return number


def _check_free(connection: Reading, name: str, now: dt.datetime) -> None:
    if connection.select(sa.select(clients.c.client).where(clients.c.client == name)).scalar() is not None:
        raise NameTaken(f"there is a client {name!r} already", hint="Choose another name.")
    if is_name_kept(connection, name, now):
        raise NameTaken(
            f"the name {name!r} is kept, for another join token or for the logs",
            hint="Revoke that token, or choose another name.",
        )


def is_name_kept(connection: Reading, name: str, now: dt.datetime) -> bool:
    """Whether nobody else may register this name: a usable join token is for it, or the logs have a use for
    it."""
    return name in RESERVED or name.startswith(ERASED) or _is_of_token(connection, name, now)


def is_somebodys(connection: Reading, name: str, now: dt.datetime) -> bool:
    """Whether a client has the name, or a usable join token is for it: nobody else can come by it."""
    registered = sa.select(clients.c.client).where(clients.c.client == name)
    return connection.select(registered).scalar() is not None or _is_of_token(connection, name, now)


def _is_of_token(connection: Reading, name: str, now: dt.datetime) -> bool:
    kept = sa.select(join_tokens.c.id).where(join_tokens.c.name == name, *_usable(now)).limit(1)
    return connection.select(kept).scalar() is not None


def _usable(now: dt.datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        join_tokens.c.revoked_at.is_(None),
        sa.or_(join_tokens.c.expires_at.is_(None), join_tokens.c.expires_at > now),
        sa.or_(join_tokens.c.uses_left.is_(None), join_tokens.c.uses_left > 0),
    )


def use_join_token(connection: Writing, token_hash: str, now: dt.datetime) -> ClientGrant:
    """Counts one use; what it grants. :class:`WrongToken`: it is unknown, revoked, expired or used up."""
    usable = sa.and_(join_tokens.c.token_hash == token_hash, *_usable(now))
    used = connection.execute(
        join_tokens.update().where(usable).values(uses_left=join_tokens.c.uses_left - 1)
    )
    if used.rowcount != 1:
        raise WrongToken(
            "the join token is unknown here, revoked, expired or used up",
            hint="Ask whoever runs the coordinator for a new one.",
        )
    granted = sa.select(join_tokens.c.role, join_tokens.c.group, join_tokens.c.name)
    return ClientGrant(*connection.select(granted.where(join_tokens.c.token_hash == token_hash)).one())


def is_join_token(connection: Reading, token_hash: str) -> bool:
    """Whether it ever was one: used up, expired and revoked ones, too."""
    statement = sa.select(join_tokens.c.id).where(join_tokens.c.token_hash == token_hash)
    return connection.select(statement).first() is not None


def list_join_tokens(connection: Reading) -> list[JoinTokenRow]:
    """Oldest first."""
    statement = sa.select(
        join_tokens.c.id,
        join_tokens.c.uses_left,
        join_tokens.c.created_at,
        join_tokens.c.expires_at,
        join_tokens.c.revoked_at,
        join_tokens.c.role,
        join_tokens.c.group,
        join_tokens.c.name,
    ).order_by(join_tokens.c.id)
    return [JoinTokenRow(*row) for row in connection.select(statement)]


def find_join_hash(connection: Reading, token: int) -> str | None:
    """None for no such token."""
    found: str | None = connection.select(
        sa.select(join_tokens.c.token_hash).where(join_tokens.c.id == token)
    ).scalar()
    return found


def list_join_hashes(connection: Reading) -> list[str]:
    return list(connection.select(sa.select(join_tokens.c.token_hash)).scalars())


def list_unrevoked_tokens(connection: Reading, token_hashes: Collection[str]) -> list[int]:
    """Ids of the join tokens that are among these and not revoked."""
    chosen = sa.and_(join_tokens.c.token_hash.in_(token_hashes), join_tokens.c.revoked_at.is_(None))
    return list(connection.select(sa.select(join_tokens.c.id).where(chosen)).scalars())


def revoke_join_token(connection: Writing, token: int, actor: str, now: dt.datetime) -> None:
    """Raises :class:`NotFound`; revoked again, nothing happens."""
    one = join_tokens.c.id == token
    if connection.select(sa.select(join_tokens.c.id).where(one)).scalar() is None:
        raise NotFound(
            f"there is no join token {token}",
            hint="`feddisco clients invitations` (GET /api/v1/join-tokens) has those there are.",
        )
    unrevoked = sa.and_(one, join_tokens.c.revoked_at.is_(None))
    if connection.execute(join_tokens.update().where(unrevoked).values(revoked_at=now)).rowcount == 1:
        detail = {"id": token}
        add_events(connection, [{"kind": "join_token_revoked", "detail": detail}], actor=actor, now=now)


def withdraw_join_tokens(connection: Writing, now: dt.datetime) -> int:
    """Revoke all that could still be used; how many those were. Whoever asks for it writes why to the log."""
    usable = sa.and_(*_usable(now))
    return connection.execute(join_tokens.update().where(usable).values(revoked_at=now)).rowcount
