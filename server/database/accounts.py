"""Clients and the tokens they join with. Only hashes of tokens come here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from server.database.facts import JoinTokenRow
from server.database.journal import add_events
from server.database.session import Reading, Writing
from server.database.tables import clients, enrolments, join_tokens, runs
from shared.problems import NameTaken, NotFound, WrongToken
from shared.schemas import ClientView, EnrolmentStatus, RunStatus

__all__ = [
    "add_join_token",
    "all_clients",
    "all_join_tokens",
    "by_token_hash",
    "lock_open_runs_of",
    "register",
    "registered_before",
    "revoke",
    "revoke_join_token",
    "touch",
    "use_join_token",
]

_VIEW = sa.select(
    clients.c.client,
    clients.c.registered_at,
    clients.c.last_seen_at,
    clients.c.revoked_at,
    clients.c.version,
)
_BY_HASH = _VIEW.where(clients.c.token_hash == sa.bindparam("of_hash", type_=sa.String))
# the driver knows how many rows an INSERT made; SQLAlchemy forgets it unless asked
_COUNTED = {"preserve_rowcount": True}
_ADD: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(clients)
    .on_conflict_do_nothing(index_elements=["client"])
    .execution_options(**_COUNTED),
    "postgresql": postgresql.insert(clients)
    .on_conflict_do_nothing(index_elements=["client"])
    .execution_options(**_COUNTED),
}
_ADD_JOIN_TOKEN: Mapping[str, sa.UpdateBase] = {
    "sqlite": sqlite.insert(join_tokens)
    .on_conflict_do_nothing(index_elements=["token_hash"])
    .execution_options(**_COUNTED),
    "postgresql": postgresql.insert(join_tokens)
    .on_conflict_do_nothing(index_elements=["token_hash"])
    .execution_options(**_COUNTED),
}
GONE = (EnrolmentStatus.LEFT, EnrolmentStatus.DECLINED)
OPEN = tuple(status for status in RunStatus if not status.terminal)


def register(
    connection: Writing,
    name: str | None,
    token_hash: str,
    version: str,
    *,
    actor: str | None,
    now: dt.datetime,
) -> str:
    """The new client's id: its name, or the next free ``client-N``. Raises :class:`NameTaken`."""
    row = {"token_hash": token_hash, "version": version, "registered_at": now}
    wanted = name if name is not None else _next_name(connection)
    while connection.execute(_ADD[connection.dialect], row | {"client": wanted}).rowcount != 1:
        if name is not None:
            raise NameTaken(
                f"a client named {name!r} is registered already",
                hint="Choose another name, or none; or use the credential that this name was given.",
            )
        wanted = _next_name(connection)  # another process was faster
    detail = {"version": version}
    add_events(
        connection,
        [{"kind": "client_registered", "client": wanted, "detail": detail}],
        actor=actor or wanted,
        now=now,
    )
    return wanted


def registered_before(connection: Reading, name: str | None, token_hash: str) -> str | None:
    """The client that registered with this token, if there is one.

    Raises :class:`NameTaken`: it has another name than the one it asks for now.
    """
    known = by_token_hash(connection, token_hash)
    if known is None or name in (None, known.client):
        return known.client if known else None
    raise NameTaken(
        f"the client {known.client!r} registered with this token, it cannot be {name!r} too",
        hint="Choose a new random token for another client.",
    )


def _next_name(connection: Reading) -> str:
    taken = connection.select(sa.select(clients.c.client).where(clients.c.client.like("client-%"))).scalars()
    numbers = [int(match[1]) for name in taken if (match := re.fullmatch(r"client-(\d{1,15})", name))]
    return f"client-{max(numbers, default=0) + 1}"


def by_token_hash(connection: Reading, token_hash: str) -> ClientView | None:
    row = connection.select(_BY_HASH, {"of_hash": token_hash}).one_or_none()
    return ClientView(**row._mapping) if row is not None else None


def all_clients(connection: Reading) -> list[ClientView]:
    """By name."""
    return [ClientView(**row._mapping) for row in connection.select(_VIEW.order_by(clients.c.client))]


def touch(connection: Writing, client: str, now: dt.datetime) -> None:
    connection.execute(clients.update().where(clients.c.client == client).values(last_seen_at=now))


def revoke(connection: Writing, client: str, actor: str, now: dt.datetime) -> bool:
    """Whether it was not revoked before; raises :class:`NotFound`."""
    unrevoked = sa.and_(clients.c.client == client, clients.c.revoked_at.is_(None))
    if connection.execute(clients.update().where(unrevoked).values(revoked_at=now)).rowcount == 1:
        add_events(connection, [{"kind": "client_revoked", "client": client}], actor=actor, now=now)
        return True
    if connection.select(_VIEW.where(clients.c.client == client)).one_or_none() is None:
        raise NotFound(
            f"there is no client {client!r}", hint="GET /api/v1/clients lists the clients there are."
        )
    return False


def lock_open_runs_of(connection: Writing, client: str) -> list[str]:
    """Runs that have not ended and that the client has neither left nor declined, by name.

    Nobody else moves them until the transaction ends. Call it before the first event is written: whoever
    moves a run locks the run first and the event log last, and the other way round would be a deadlock.
    """
    statement = (
        sa.select(runs.c.run)
        .join(enrolments, enrolments.c.run == runs.c.run)
        .where(enrolments.c.client == client, enrolments.c.status.not_in(GONE), runs.c.status.in_(OPEN))
        .order_by(runs.c.run)
        .with_for_update(of=runs, key_share=True)
    )
    return list(connection.select(statement).scalars())


# -------------------------------------------------------------------- join tokens


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
    added = connection.execute(_ADD_JOIN_TOKEN[connection.dialect], row).rowcount == 1
    known = sa.select(join_tokens.c.id).where(join_tokens.c.token_hash == token_hash)
    number = int(connection.select(known).scalar_one())
    if not added:
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


def all_join_tokens(connection: Reading) -> list[JoinTokenRow]:
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
