"""Registered clients. Only the hashes of their tokens come here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from server.database.events import add_events
from server.database.join_tokens import ANY_CLIENT, ClientGrant, is_name_kept
from server.database.session import Reading, Writing
from server.database.tables import clients, enrolments, identity_pins, runs
from shared.fingerprints import identity_fingerprint
from shared.problems import NameTaken, NotFound, OtherIdentity, WrongName
from shared.schemas import ClientView, EnrolmentStatus, RunStatus

__all__ = [
    "find_by_token_hash",
    "find_free_name",
    "find_registered",
    "find_token_hash",
    "list_clients",
    "list_token_hashes",
    "list_unrevoked",
    "lock_open_runs_of",
    "mark_seen",
    "no_such_client",
    "pin_identity",
    "read_grant",
    "read_identity",
    "register",
    "revoke",
]

_VIEW = sa.select(
    clients.c.client,
    clients.c.registered_at,
    clients.c.last_seen_at,
    clients.c.revoked_at,
    clients.c.version,
    clients.c.role,
    clients.c.group,
    clients.c.identity,
)
_BY_HASH = _VIEW.where(clients.c.token_hash == sa.bindparam("of_hash", type_=sa.String))
_SEEN = clients.update().where(clients.c.client == sa.bindparam("of_client", type_=sa.String))


def register(
    connection: Writing,
    name: str | None,
    token_hash: str,
    version: str,
    grant: ClientGrant = ANY_CLIENT,
    *,
    identity: str | None = None,
    actor: str | None,
    now: dt.datetime,
) -> str:
    """The new client's id: its name, or the next free ``client-N``. ``identity``: its public key.

    Raises :class:`NameTaken`, and :class:`WrongName` where the join token is for another one;
    :class:`OtherIdentity` where another key is pinned for the name.
    """
    name = _check_name(connection, name, grant, now)
    if name is not None:
        _check_pin(connection, name, identity)
    row = {"token_hash": token_hash, "version": version, "registered_at": now, "identity": identity}
    row |= {"role": grant.role, "group": grant.group}
    wanted = name if name is not None else _next_name(connection)
    while connection.insert_new(clients, row | {"client": wanted}, "client") != 1:
        if name is not None:
            raise NameTaken(
                f"a client named {name!r} is registered already",
                hint="Choose another name, or none; or use the credential that this name was given.",
            )
        wanted = _next_name(connection)  # another process was faster
    given = {"role": grant.role, "group": grant.group}
    given["fingerprint"] = identity_fingerprint(identity)
    detail = {"version": version} | {key: value for key, value in given.items() if value is not None}
    add_events(
        connection,
        [{"kind": "client_registered", "client": wanted, "detail": detail}],
        actor=actor or wanted,
        now=now,
    )
    return wanted


def _check_name(connection: Reading, name: str | None, grant: ClientGrant, now: dt.datetime) -> str | None:
    if grant.name is None:
        if name is not None and is_name_kept(connection, name, now):
            raise NameTaken(
                f"the name {name!r} is kept, for the client of another join token or for the logs",
                hint="Choose another name, or ask for that join token.",
            )
        return name
    if name not in (None, grant.name):
        raise WrongName(
            f"the join token is for the client {grant.name!r}, not for {name!r}",
            hint="Register under that name, or ask whoever runs the coordinator for another join token.",
        )
    return grant.name


def _check_pin(connection: Reading, name: str, identity: str | None) -> None:
    pinned = connection.select(
        sa.select(identity_pins.c.fingerprint).where(identity_pins.c.client == name)
    ).scalar()
    if pinned is not None and pinned != identity_fingerprint(identity):
        raise OtherIdentity(
            f"the name {name!r} is pinned to another identity key than this client's",
            hint="Register from the state folder that holds that key, or ask the coordinator's operator to "
            "pin the new one.",
        )


def pin_identity(connection: Writing, client: str, fingerprint: str, actor: str, now: dt.datetime) -> None:
    """From now on the name is registered under this key only; pinned again, the newest counts.

    Raises :class:`OtherIdentity` if the client is registered, under another key.
    """
    row = connection.select(_VIEW.where(clients.c.client == client)).one_or_none()
    if row is not None and identity_fingerprint(row.identity) != fingerprint:
        raise OtherIdentity(
            f"the client {client!r} is registered under another identity key",
            hint="Compare its fingerprint with the site; a name that was registered is not given again.",
        )
    pin = {"fingerprint": fingerprint, "pinned_at": now}
    if connection.insert_new(identity_pins, {"client": client} | pin, "client") != 1:
        connection.execute(identity_pins.update().where(identity_pins.c.client == client).values(**pin))
    detail = {"fingerprint": fingerprint}
    add_events(
        connection, [{"kind": "identity_pinned", "client": client, "detail": detail}], actor=actor, now=now
    )


def find_registered(connection: Reading, name: str | None, token_hash: str) -> str | None:
    """The client that registered with this token, if there is one.

    Raises :class:`NameTaken`: it has another name than the one it asks for now.
    """
    known = find_by_token_hash(connection, token_hash)
    if known is None or name in (None, known.client):
        return known.client if known else None
    raise NameTaken(
        f"the client {known.client!r} registered with this token, it cannot be {name!r} too",
        hint="Choose a new random token for another client.",
    )


def _next_name(connection: Reading) -> str:
    return find_free_name(connection, "client-")


def find_free_name(connection: Reading, prefix: str) -> str:
    """The prefix with the number after the largest one in use; somebody may have taken any of these names."""
    taken = set(
        connection.select(sa.select(clients.c.client).where(clients.c.client.like(f"{prefix}%"))).scalars()
    )
    numbers = (match[1] for name in taken if (match := re.fullmatch(rf"{prefix}(\d{{1,9}})", name)))
    number = max(map(int, numbers), default=0) + 1
    while f"{prefix}{number}" in taken:  # beyond nine digits
        number += 1
    return f"{prefix}{number}"


def find_by_token_hash(connection: Reading, token_hash: str) -> ClientView | None:
    """Revoked clients too."""
    row = connection.select(_BY_HASH, {"of_hash": token_hash}).one_or_none()
    return _view(row) if row is not None else None


def _view(row: Any) -> ClientView:
    return ClientView(**row._mapping, fingerprint=identity_fingerprint(row.identity))


def read_grant(connection: Reading, client: str) -> ClientGrant:
    """What the client's join token made of it."""
    row = connection.select(_VIEW.where(clients.c.client == client)).one_or_none()
    return ANY_CLIENT if row is None else ClientGrant(row.role, row.group, row.client)


_GRANTS = sa.select(clients.c.client, clients.c.role, clients.c.group).where(
    clients.c.client.in_(sa.bindparam("names", expanding=True)), clients.c.revoked_at.is_(None)
)


def read_grants(connection: Reading, names: Sequence[str]) -> dict[str, ClientGrant]:
    """As :func:`read_grant`, of those among them that were not revoked."""
    found = connection.select(_GRANTS, {"names": list(names)})
    return {row.client: ClientGrant(row.role, row.group, row.client) for row in found}


def read_identity(connection: Reading, client: str) -> str | None:
    """The client's public key; None: it has none."""
    found: str | None = connection.select(
        sa.select(clients.c.identity).where(clients.c.client == client)
    ).scalar()
    return found


def list_clients(connection: Reading) -> list[ClientView]:
    """By name."""
    return [_view(row) for row in connection.select(_VIEW.order_by(clients.c.client))]


def mark_seen(connection: Writing, seen: Mapping[str, dt.datetime]) -> None:
    """Notes when each client was last seen."""
    # sorted: two coordinators take the rows' locks in the same order
    rows = [{"of_client": client, "last_seen_at": at} for client, at in sorted(seen.items())]
    if rows:
        connection.execute(_SEEN, rows)


def no_such_client(client: str) -> NotFound:
    return NotFound(
        f"there is no client {client!r}",
        hint="`feddisco clients list` (GET /api/v1/clients) has the clients there are.",
    )


def revoke(connection: Writing, client: str, actor: str, now: dt.datetime) -> bool:
    """Whether it was not revoked before; raises :class:`NotFound`."""
    unrevoked = sa.and_(clients.c.client == client, clients.c.revoked_at.is_(None))
    if connection.execute(clients.update().where(unrevoked).values(revoked_at=now)).rowcount == 1:
        add_events(connection, [{"kind": "client_revoked", "client": client}], actor=actor, now=now)
        return True
    if connection.select(_VIEW.where(clients.c.client == client)).one_or_none() is None:
        raise no_such_client(client)
    return False


def find_token_hash(connection: Reading, client: str) -> str | None:
    """Of the client's token; None for no such client."""
    found: str | None = connection.select(
        sa.select(clients.c.token_hash).where(clients.c.client == client)
    ).scalar()
    return found


def list_token_hashes(connection: Reading) -> list[str]:
    return list(connection.select(sa.select(clients.c.token_hash)).scalars())


def list_unrevoked(connection: Reading, token_hashes: Collection[str]) -> list[str]:
    """Clients whose token is one of these and is still accepted."""
    chosen = sa.and_(clients.c.token_hash.in_(token_hashes), clients.c.revoked_at.is_(None))
    return list(connection.select(sa.select(clients.c.client).where(chosen)).scalars())


def lock_open_runs_of(connection: Writing, client: str) -> list[str]:
    """Runs that have not ended and that the client has neither left nor declined, by name.

    Nobody else moves them until the transaction ends. Call it before the first event is written: whoever
    moves a run locks the run first and the event log last, and the other way round would be a deadlock.
    """
    statement = (
        sa.select(runs.c.run)
        .join(enrolments, enrolments.c.run == runs.c.run)
        .where(
            enrolments.c.client == client,
            enrolments.c.status.not_in([status for status in EnrolmentStatus if status.is_gone]),
            runs.c.status.in_([status for status in RunStatus if not status.is_terminal]),
        )
        .order_by(runs.c.run)
        .with_for_update(of=runs, key_share=True)
    )
    return list(connection.select(statement).scalars())
