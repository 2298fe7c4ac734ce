"""What other coordinators have committed on the same PostgreSQL, found by one statement for all clients.

Every commit that may concern a client writes an event, or is counted in ``installation.changes``
(``server.database.group_commit``). Ids of events become visible in their order, so nothing is missed by
asking for those after the newest that was seen; what this process has written itself is no news to it.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.tables import UtcDateTime, clients, events, installation, sessions, users

__all__ = ["TRUSTED_SECONDS", "Others", "Seen"]

TRUSTED_SECONDS = 2.0
"""After a look that found nothing: as long as the owner of a token is remembered without any."""
MOST_EVENTS = 1000
"""At a look; where there are more, there is news among them."""
_SINCE = sa.bindparam("since", type_=UtcDateTime)
_NEWEST = (
    sa.select(events.c.id, events.c.kind)
    .where(events.c.id > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(events.c.id.desc())
    .limit(MOST_EVENTS)
    .subquery("newest")
)


def _rows(what: str, number: sa.ColumnElement[int], name: sa.ColumnElement[str]) -> sa.Select[str, int, str]:
    return sa.select(sa.literal_column(f"'{what}'").label("what"), number.label("number"), name.label("name"))


_NO_NUMBER, _NO_NAME = sa.literal_column("0", sa.BigInteger), sa.literal_column("''", sa.String)
_FOUND = sa.select(
    sa.union_all(
        _rows("event", _NEWEST.c.id, _NEWEST.c.kind),
        _rows("changes", installation.c.changes, _NO_NAME),
        _rows("client", _NO_NUMBER, clients.c.client).where(clients.c.revoked_at >= _SINCE),
        _rows("user", _NO_NUMBER, users.c.name).where(
            sa.or_(users.c.revoked_at >= _SINCE, users.c.renewed_at >= _SINCE)
        ),
        _rows("session", _NO_NUMBER, sessions.c.session_hash).where(sessions.c.ended_at >= _SINCE),
    ).subquery("found")
)
_OF_TOKENS = frozenset(("client_erased", "client_revoked"))


@dataclass(frozen=True, slots=True)
class Seen:
    """``concerns_tokens``: others may have revoked or erased a client, perhaps under a name that is no more.
    ``ended``: whose token or session has ended: (client, user or session; its name or hash), by whomever.
    """

    concerns_tokens: bool
    ended: list[tuple[str, str]]


class Others:
    """Tells what others have committed from what this process has. Used from several threads.

    ``on_news`` is called where there is any, before the look counts.
    """

    def __init__(self, on_news: Callable[[], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._on_news = on_news
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._events: set[int] = set()  # of this process, newer than the newest that was seen
        self._changes: set[int] = set()
        self._newest = 0
        self._counted: int | None = None
        self._looked_at = -TRUSTED_SECONDS

    @property
    def is_watched(self) -> bool:
        """Whether what others commit is found soon: what is remembered may be believed meanwhile."""
        return self._monotonic() - self._looked_at < TRUSTED_SECONDS

    def note_own(self, connection: Writing) -> None:
        """It is committed. Later than that is safe: then it counts as news once."""
        with self._lock:
            self._events.update(connection.events)
            if connection.changes is not None:
                self._changes.add(connection.changes)

    def look(self, connection: Reading, since: dt.datetime) -> Seen:
        """What has been committed since the last look; one thread at a time. The first finds news.

        ``since``: from when on ended tokens are listed.
        """
        began = self._monotonic()
        found = connection.select(_FOUND, {"after": self._newest, "since": since}).all()
        written = {number: name for what, number, name in found if what == "event"}
        counted = next((number for what, number, _ in found if what == "changes"), None)
        with self._lock:
            foreign = [name for number, name in written.items() if number not in self._events]
            before, self._counted = self._counted, counted or 0
            since_then = range((before or 0) + 1, (counted or 0) + 1)
            is_moved = any(number not in self._changes for number in since_then)
            self._newest = max(written, default=self._newest)
            self._events = {number for number in self._events if number > self._newest}
            self._changes = {number for number in self._changes if number > (counted or 0)}
        is_unsure = before is None or len(written) == MOST_EVENTS
        if is_moved or foreign or is_unsure:
            self._on_news()
        self._looked_at = began
        return Seen(
            concerns_tokens=is_unsure or not _OF_TOKENS.isdisjoint(foreign),
            ended=[(what, name) for what, _, name in found if what not in ("event", "changes")],
        )
