"""People: their roles, and the sessions of their browsers. Only hashes of tokens and cookies come here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from server.database import audit_log
from server.database.session import Reading, Writing
from server.database.tables import sessions, users
from shared.problems import NameTaken, NotFound
from shared.schemas import UserRequest, UserView

__all__ = [
    "UserRow",
    "add_user",
    "end_all_sessions",
    "end_session",
    "find_session",
    "find_user_by_hash",
    "list_unrevoked_users",
    "list_user_hashes",
    "list_users",
    "read_user",
    "renew_user",
    "revoke_user",
    "start_session",
]

_VIEW = sa.select(
    *(users.c.name, users.c.role, users.c.runs, users.c.created_at, users.c.renewed_at, users.c.revoked_at)
)


@dataclass(frozen=True, slots=True)
class UserRow:
    """A person with the hash of the token."""

    user: UserView
    token_hash: str


def add_user(
    connection: Writing, request: UserRequest, token_hash: str, *, actor: str, now: dt.datetime
) -> None:
    """Raises :class:`NameTaken`; a revoked person keeps the name, too, since the logs name people."""
    runs = None if request.runs is None else list(request.runs)
    row = {"name": request.name, "token_hash": token_hash, "role": request.role, "created_at": now}
    if connection.insert_new(users, row | {"runs": runs}, "name") != 1:
        raise NameTaken(
            f"there is a user {request.name!r} already, or was",
            hint="Choose another name; `feddisco users renew` gives a new token to one who lost it or was "
            "revoked.",
        )
    detail = {"user": request.name, "role": request.role.value, "runs": runs}
    audit_log.append(connection, "user_added", detail=detail, actor=actor, now=now)


def renew_user(connection: Writing, name: str, token_hash: str, *, actor: str, now: dt.datetime) -> None:
    """Another token in place of the one before; one who was revoked is let in again.

    After a restore that may be who had a new token since the backup: the one that the database knows is
    revoked, and the name is given to nobody else. Raises :class:`NotFound`.
    """
    before = read_user(connection, name)
    if before is None:
        raise _no_such_user(name)
    values = {"token_hash": token_hash, "renewed_at": now, "revoked_at": None}
    connection.execute(users.update().where(users.c.name == name).values(values))
    detail = {"user": name} | ({"was_revoked": True} if before.user.revoked_at is not None else {})
    audit_log.append(connection, "user_renewed", detail=detail, actor=actor, now=now)


def revoke_user(connection: Writing, name: str, *, actor: str, now: dt.datetime) -> None:
    """Raises :class:`NotFound`; revoked again, nothing happens."""
    current = sa.and_(users.c.name == name, users.c.revoked_at.is_(None))
    if connection.execute(users.update().where(current).values(revoked_at=now)).rowcount == 1:
        audit_log.append(connection, "user_revoked", detail={"user": name}, actor=actor, now=now)
    elif read_user(connection, name) is None:
        raise _no_such_user(name)


def _no_such_user(name: str) -> NotFound:
    return NotFound(f"there is no user {name!r}", hint="`feddisco users list` shows those there are.")


def read_user(connection: Reading, name: str) -> UserRow | None:
    return _read_row(connection, users.c.name == name)


def find_user_by_hash(connection: Reading, token_hash: str) -> UserRow | None:
    """Revoked ones, too."""
    return _read_row(connection, users.c.token_hash == token_hash)


def _read_row(connection: Reading, which: sa.ColumnElement[bool]) -> UserRow | None:
    row = connection.select(_VIEW.add_columns(users.c.token_hash).where(which)).one_or_none()
    if row is None:
        return None
    *view, token_hash = row
    return UserRow(UserView(**dict(zip(UserView.model_fields, view, strict=True))), token_hash)


def list_users(connection: Reading) -> list[UserView]:
    """By name, revoked ones, too."""
    return [UserView(**row._mapping) for row in connection.select(_VIEW.order_by(users.c.name))]


def list_user_hashes(connection: Reading) -> list[str]:
    return list(connection.select(sa.select(users.c.token_hash)).scalars())


def list_unrevoked_users(connection: Reading, token_hashes: Collection[str]) -> list[str]:
    """Names of those whose token is one of these and is still accepted."""
    chosen = sa.and_(users.c.token_hash.in_(token_hashes), users.c.revoked_at.is_(None))
    return list(connection.select(sa.select(users.c.name).where(chosen)).scalars())


# -------------------------------------------------------------------- sessions


def start_session(
    connection: Writing,
    session_hash: str,
    token_hash: str,
    *,
    ends_at: dt.datetime,
    actor: str,
    now: dt.datetime,
) -> None:
    """Sessions that are over are removed by the way."""
    connection.execute(sessions.delete().where(sessions.c.ends_at < now))
    row = {"session_hash": session_hash, "token_hash": token_hash, "started_at": now, "ends_at": ends_at}
    connection.execute(sessions.insert(), row)
    audit_log.append(connection, "signed_in", actor=actor, now=now)


def find_session(connection: Reading, session_hash: str, now: dt.datetime) -> tuple[str, dt.datetime] | None:
    """The hash of the token that it was begun with, and when it ends; None: there is none, or it is over."""
    going_on = sa.and_(sessions.c.ended_at.is_(None), sessions.c.ends_at > now)
    columns = sa.select(sessions.c.token_hash, sessions.c.ends_at)
    row = connection.select(columns.where(sessions.c.session_hash == session_hash, going_on)).one_or_none()
    return None if row is None else (row.token_hash, row.ends_at)


def end_session(connection: Writing, session_hash: str, *, actor: str, now: dt.datetime) -> None:
    one = sa.and_(sessions.c.session_hash == session_hash, sessions.c.ended_at.is_(None))
    if connection.execute(sessions.update().where(one).values(ended_at=now)).rowcount == 1:
        audit_log.append(connection, "signed_out", actor=actor, now=now)


def end_all_sessions(connection: Writing) -> None:
    connection.execute(sessions.delete())
