"""The event log: in pages, and as server-sent events, past ones first and then each new one at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.api.dependencies import Coordinator, Reader, ReadRuns
from server.api.documents import RunId, make_router, name_next_page
from server.runs.client_views import event_for, is_progress_for
from server.wakeups.feeds import Entry, EventBatch, write_event
from server.web.numbers import parse_whole
from shared.problems import InvalidRequest
from shared.schemas import EventView

router = make_router("events")

OPENING = b": events follow\nretry: 2000\n\n"
STILL_HERE = b": still here\n\n"
SILENCE_SECONDS = 15.0
"""A page takes a longer silence for a dead connection."""
LARGEST_ID = 2**63 - 1
MOST_EVENTS = 1000
Past = Annotated[int, Query(ge=0, le=LARGEST_ID, description="only events with a larger id")]
Limit = Annotated[int, Query(ge=1, le=MOST_EVENTS, description="how many events at most")]
After = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="only events with a larger id")]
LastEventId = Annotated[
    str | None, Header(description="what a browser sends instead of `after` when it reconnects")
]


async def _read_start(
    coordinator: Coordinator, after: After = None, last_event_id: LastEventId = None
) -> int:
    """A browser that reconnects repeats its first address, so the larger of the two counts.

    But none that is still to come: the database may have been put back to an earlier day.
    """
    start = after or 0
    if last_event_id:
        seen = parse_whole(last_event_id, LARGEST_ID)
        if seen is None:
            raise InvalidRequest(f"Last-Event-ID is {last_event_id[:40]!r}, not an event's id")
        start = max(start, seen)
    if not start:
        return 0
    return min(start, await coordinator.threads.run_for_viewers(coordinator.store.latest_event_id))


async def _check_run(run: RunId, coordinator: Coordinator) -> str:
    await coordinator.threads.run(coordinator.store.run_state, run)
    return run


@dataclass(frozen=True)
class Choice:
    """Whose events are read: those that are a client's business, or those of some runs."""

    client: str | None
    runs: frozenset[str] | None

    def find(self, event: EventView) -> EventView | None:
        """The event as the reader sees it; None: not at all."""
        if self.runs is not None and event.run not in self.runs:
            return None
        return event if self.client is None else event_for(self.client, event)

    def has_progress(self, progress: Mapping[str, Any]) -> bool:
        """Whether a heartbeat is the reader's; it does not say of which run it is."""
        return self.client is not None and is_progress_for(self.client, progress)


async def _choose(request: Request, reader: Reader, only: ReadRuns) -> Choice | None:
    runs = None if "run" in request.path_params else only  # that run may be read, or this is not reached
    return None if reader is None and runs is None else Choice(reader, runs)


Start = Annotated[int, Depends(_read_start)]
Chosen = Annotated[Choice | None, Depends(_choose)]
"""None: everything."""


class EventStream(StreamingResponse):
    """Server-sent events. No proxy is to keep them back, and whoever hangs up is forgotten at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], status_code: int = 200) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, status_code, headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


@router.get("/events", response_class=EventStream)
async def all_events(coordinator: Coordinator, start: Start, choice: Chosen) -> EventStream:
    """Events of all runs: the past ones, all or those after a given one, then each new one at once.

    A client gets its own, and those of runs as a whole; a person with some runs only those of these.
    """
    return EventStream(_follow(coordinator, None, start, choice))


@router.get("/runs/{run}/events", response_class=EventStream)
async def run_events(
    run: Annotated[str, Depends(_check_run)], coordinator: Coordinator, start: Start, choice: Chosen
) -> EventStream:
    """Events of one run, and the heartbeats of its clients (`progress`, without id, not kept)."""
    return EventStream(_follow(coordinator, run, start, choice))


@router.get("/log")
async def log_of_all(
    request: Request,
    response: Response,
    coordinator: Coordinator,
    choice: Chosen,
    after: Past = 0,
    limit: Limit = MOST_EVENTS,
) -> list[EventView]:
    """A page of the event log of all runs, oldest first. The header Link names the next, if there is one."""
    return await _read_page(request, response, coordinator, None, choice, after, limit)


@router.get("/runs/{run}/log")
async def log_of_run(
    run: Annotated[str, Depends(_check_run)],
    request: Request,
    response: Response,
    coordinator: Coordinator,
    choice: Chosen,
    after: Past = 0,
    limit: Limit = MOST_EVENTS,
) -> list[EventView]:
    """The same of one run. A client's page may be empty, and have a next one."""
    return await _read_page(request, response, coordinator, run, choice, after, limit)


async def _read_page(
    request: Request,
    response: Response,
    coordinator: Coordinator,
    run: str | None,
    choice: Choice | None,
    after: int,
    limit: int,
) -> list[EventView]:
    read = coordinator.threads.run_for_viewers
    found = await read(coordinator.store.events, after, run, limit + 1)
    if len(found) > limit:
        name_next_page(request, response, after=found[limit - 1].id, limit=limit)
    page = found[:limit]
    if choice is None:
        return page
    return [shown for event in page if (shown := choice.find(event)) is not None]


async def _follow(
    coordinator: Coordinator, run: str | None, last: int, choice: Choice | None
) -> AsyncGenerator[bytes]:
    hub = coordinator.hub
    with coordinator.feeds.following(run, hub.recheck_seconds) as (feed, follower):
        yield OPENING
        while not hub.closed:
            batches = feed.take(follower)
            if batches is None:
                while last < feed.newest and (past := await feed.read_past(last)).entries:
                    yield _write(past, last, choice)
                    last = past.last
                continue
            for batch in batches:
                if data := _write(batch, last, choice):
                    yield data
                last = max(last, batch.last)
            if not await follower.wait(SILENCE_SECONDS):
                yield STILL_HERE


def _write(batch: EventBatch, last: int, choice: Choice | None) -> bytes:
    """What the reader has not had, and may read."""
    if choice is None and (not batch.last or batch.first > last):
        return batch.data
    chosen = (entry for entry in batch.entries if entry.id == 0 or entry.id > last)
    return b"".join(_write_entry(entry, choice) for entry in chosen)


def _write_entry(entry: Entry, choice: Choice | None) -> bytes:
    """Empty for what is not the reader's business."""
    if choice is None:
        return entry.data
    if not isinstance(entry.content, EventView):
        return entry.data if choice.has_progress(entry.content) else b""
    shown = choice.find(entry.content)
    return b"" if shown is None else entry.data if shown is entry.content else write_event(shown)
