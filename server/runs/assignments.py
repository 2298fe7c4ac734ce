"""What a client does next."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachetools import LRUCache

from server.clock import Clock
from server.database.store import Store
from server.lifecycle.events import AssignmentTaken, ClientSeen
from server.runs.runner import Runner
from shared.problems import Conflict, NotFound
from shared.schemas import Assignment, Train

__all__ = ["Assignments"]

TRIES = 5
CLIENTS = 50_000
ASK_AGAIN_SECONDS = 60.0
"""A client that does not send a lost update again is asked for it once in this time."""


Training = tuple[str, int, int]
"""Run, round and attempt of an assignment to train."""


@dataclass(frozen=True)
class _Words:
    """What was found of a client when the store's news were ``news``, and holds for as long as they are.

    ``is_present``: it is away in no run. ``reason``: the sentence on what it waits for, as it is said on this
    ``day``.
    """

    news: int
    is_present: bool = False
    reason: str | None = None
    day: dt.date | None = None


@dataclass(frozen=True)
class _Idle:
    """Of a client there was nothing for, when the news of work were ``news``, but to train ``before``."""

    news: int
    before: Training | None = None


@dataclass(frozen=True)
class Assignments:
    """Reads assignments from the database, and notes that a client has one before it is told of it.

    Where this process alone writes to the database, a client that has nothing to do is looked up again only
    when something has been written since. The methods that say so do not block: the event loop calls them.
    """

    store: Store
    runner: Runner
    clock: Clock
    _asked_again: dict[str, float] = field(default_factory=dict)  # by client, when
    _words: LRUCache[str, _Words] = field(default_factory=lambda: LRUCache(CLIENTS))  # by client
    _idle: LRUCache[str, _Idle] = field(default_factory=lambda: LRUCache(CLIENTS))  # by client
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ------------------------------------------------------------ on the event loop

    def is_present(self, client: str) -> bool:
        """Whether it is known to count as away nowhere."""
        found = self._recall(client)
        return found is not None and found.is_present

    def is_idle(self, client: str) -> bool:
        """Whether it is known that there is no assignment for the client."""
        found = self._recall_idle(client)
        return found is not None and found.before is None

    def recall_reason(self, client: str) -> str | None:
        """What :meth:`explain_wait` would say, if that is known."""
        found = self._recall(client)
        return None if found is None or found.day != self.clock().date() else found.reason

    def _recall(self, client: str) -> _Words | None:
        news = self.store.news
        with self._lock:
            found = self._words.get(client)
        return found if found is not None and found.news == news else None

    def _recall_idle(self, client: str) -> _Idle | None:
        news = self.store.news_of_work
        with self._lock:
            found = self._idle.get(client)
        return found if found is not None and found.news == news else None

    def _remember(self, client: str, news: int | None, **found: Any) -> None:
        """``news``: as they were before the database was asked, here and below."""
        if news is None:
            return
        with self._lock:
            known = self._words.get(client)
            known = known if known is not None and known.news == news else _Words(news)
            self._words[client] = replace(known, **found)

    def _remember_idle(self, client: str, news: int | None, before: Training | None) -> None:
        if news is not None:
            with self._lock:
                self._idle[client] = _Idle(news, before)

    # ------------------------------------------------------------ on any thread

    def take_next(self, client: str) -> Assignment | None:
        """What :meth:`take_each` says of this client."""
        return self.take_each([client])[client]

    def take_each(self, clients: Sequence[str]) -> dict[str, Assignment | None]:
        """By client its next assignment, or None. One to train is noted as taken before it is given.

        The same assignment is given again until it is done, so that a worker that was killed loses nothing.
        """
        found: dict[str, Assignment | None] = {}
        left = list(clients)
        for _ in range(TRIES):
            if not left:
                break
            left = self._take(left, found)
        return found | dict.fromkeys(left)  # their rounds change all the time: the next change wakes them

    def _take(self, clients: Sequence[str], found: dict[str, Assignment | None]) -> list[str]:
        """Adds what is ``found``; who is left has to ask again, since its round was closed in between."""
        words, news, now = self.store.news, self.store.news_of_work, self.clock.monotonic()
        day = self.clock().date()
        lost_too = {
            client: now - self._asked_again.get(client, -math.inf) >= ASK_AGAIN_SECONDS for client in clients
        }
        taken: dict[str, Train] = {}
        for client, (assignment, is_all, reason) in self.store.work_for_each(lost_too).items():
            if assignment is None and reason is not None:
                self._remember(client, words, reason=reason, day=day)
            before = None
            if isinstance(assignment, Train) and not assignment.again:
                before = assignment.run, assignment.round, assignment.attempt
                taken[client] = assignment
            elif isinstance(assignment, Train):  # its round is closed: nothing moves
                self._asked_again[client] = now
            if is_all and lost_too[client]:
                self._remember_idle(client, news, before)
            if before is None:
                found[client] = assignment
        refused: set[str] = set()
        for run in sorted({one.run for one in taken.values()}):
            events = [
                AssignmentTaken(client, one.round, one.attempt)
                for client, one in taken.items()
                if one.run == run
            ]
            try:
                refused |= self.runner.commit_taken(run, events)
            except NotFound:  # it was stopped and deleted in between
                refused |= {event.client for event in events}
        found |= {client: one for client, one in taken.items() if client not in refused}
        return sorted(refused)

    def note_update(self, client: str, run: str, round: int, attempt: int) -> None:
        """The update of this assignment was accepted: the client may be known to have nothing else to do."""
        found = self._recall_idle(client)
        if found is not None and found.before == (run, round, attempt):
            self._remember_idle(client, found.news, None)

    def explain_wait(self, client: str) -> str:
        """One sentence: what a client without an assignment is waiting for."""
        news, now = self.store.news, self.clock()
        reason = self.store.waiting_for(client, now)
        self._remember(client, news, reason=reason, day=now.date())
        return reason

    def mark_returned(self, client: str) -> None:
        """A client that had missed a deadline is heard of again, so it may be drawn again."""
        news = self.store.news
        away = self.store.away_in(client)
        if not away:
            self._remember(client, news, is_present=True)
        for run in away:
            with contextlib.suppress(Conflict):  # another poll of it was faster, or the run has ended
                self.runner.commit(run, ClientSeen(client), actor=client)
