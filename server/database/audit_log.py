"""The audit log: who did what, and who read what of a client, chained by hash.

An entry is a line of JSON that holds the SHA-256 of the entry before it, so that nobody can change, remove
or add one in the middle without changing all that follow. Entries are kept, exported and hashed byte for
byte alike: ``sha256sum`` of an exported line is the ``previous`` of the next.

What people do is entered by the transaction that does it (``server.database.events``), what they read
beside it. A chain cannot tell that its newest entries are missing, nor that all of it was written anew:
for that, keep the hash of the newest entry elsewhere (docs/users.md).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.storable import make_storable
from server.database.tables import audit_log, events

__all__ = [
    "AUDITED_KINDS",
    "FIRST",
    "append",
    "check_chain",
    "find_faults",
    "hash_entry",
    "is_audited",
    "is_person",
    "list_entries",
    "read_newest",
]

FIRST = "0" * 64
"""What the first entry holds in place of the hash before it."""
BEGUN = "audit_begun"

AUDITED_KINDS = frozenset(
    (
        *("client_registered", "client_revoked", "join_token_added", "join_token_revoked", "run_created"),
        *("client_enrolled", "client_refused", "client_approved", "client_declined", "client_left"),
    )
)
"""Kinds of events that are entered whoever acts; of people, every event is."""

PERSON = "user:"
ADMIN = "admin"


def is_audited(kind: str, actor: str) -> bool:
    return kind in AUDITED_KINDS or is_person(actor)


def is_person(actor: str) -> bool:
    return actor == ADMIN or actor.startswith(PERSON)


def hash_entry(entry: str) -> str:
    """SHA-256 of a line without its end, hexadecimal."""
    return hashlib.sha256(entry.encode()).hexdigest()


def append(
    connection: Writing,
    action: str,
    *,
    actor: str,
    now: dt.datetime,
    run: str | None = None,
    client: str | None = None,
    event: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry; the event log stays locked until the commit, so that entries follow one another.

    ``event``: the id of the event that says the same.
    """
    connection.lock_events()
    newest = connection.select(
        sa.select(audit_log.c.number, audit_log.c.hash).order_by(audit_log.c.number.desc()).limit(1)
    ).one_or_none()
    number, previous = (1, FIRST) if newest is None else (newest.number + 1, newest.hash)
    written: dict[str, Any] = {"number": number, "at": now.astimezone(dt.UTC).isoformat()}
    written |= {"actor": actor, "action": action, "run": run, "client": client}
    written |= {} if event is None else {"event": event}
    written |= {"detail": make_storable(dict(detail or {})), "previous": previous}
    entry = json.dumps(written, separators=(",", ":"))  # ASCII: no encoding to agree on
    connection.execute(audit_log.insert(), {"number": number, "entry": entry, "hash": hash_entry(entry)})


def read_newest(connection: Reading) -> tuple[int, str | None]:
    """Number and text of the newest entry."""
    found = sa.select(audit_log.c.number, audit_log.c.entry).order_by(audit_log.c.number.desc()).limit(1)
    row = connection.select(found).one_or_none()
    return (0, None) if row is None else (row.number, row.entry)


def list_entries(connection: Reading, after: int, limit: int) -> list[str]:
    """Entries with a larger number, oldest first."""
    found = sa.select(audit_log.c.entry).where(audit_log.c.number > after)
    return list(connection.select(found.order_by(audit_log.c.number).limit(limit)).scalars())


def find_faults(connection: Reading, head: str | None = None) -> list[str]:
    """What is wrong with the chain, and with it beside the event log; one sentence each."""
    rows = connection.select(sa.select(audit_log.c.entry, audit_log.c.hash).order_by(audit_log.c.number))
    entered, begun_after = set[int](), 0

    def note_events(entry: str) -> str:
        nonlocal begun_after
        with suppress(ValueError, TypeError, AttributeError, KeyError):
            said = json.loads(entry)
            entered.add(said.get("event", 0))
            if said["action"] == BEGUN:
                begun_after = int(said["detail"]["after_event"])
        return entry

    faults = list(check_chain(((note_events(entry), stored) for entry, stored in rows), head))
    later = sa.select(events.c.id, events.c.kind, events.c.actor).where(events.c.id > begun_after)
    faults += [
        f"event {id} ({kind} by {actor}) has no entry"
        for id, kind, actor in connection.select(later.order_by(events.c.id))
        if is_audited(kind, actor) and id not in entered
    ]
    return faults


def check_chain(entries: Iterable[tuple[str, str | None]], head: str | None = None) -> Iterator[str]:
    """What is wrong with a chain, one sentence each.

    ``entries``: each with the hash that is stored beside it, if there is one. ``head``: a hash that was noted
    elsewhere, which some entry must have.
    """
    number, previous, is_head_found = 0, FIRST, head is None
    for entry, stored in entries:
        number += 1
        actual = hash_entry(entry)
        try:
            said = json.loads(entry)
            claimed = said["number"], said["previous"]
        except (ValueError, KeyError, TypeError):
            yield f"entry {number} cannot be read"
            claimed = number, previous
        if claimed[0] != number:
            yield f"where entry {number} should be is entry {claimed[0]}"
            number = claimed[0] if isinstance(claimed[0], int) else number
        if claimed[1] != previous:
            yield f"entry {number} does not follow the one before it"
        if stored is not None and stored != actual:
            yield f"entry {number} was changed: it has another hash than the one stored"
        previous = actual
        is_head_found = is_head_found or actual == head
    if not is_head_found:
        yield f"no entry has the hash {head}: entries were changed, or the newest are missing"
