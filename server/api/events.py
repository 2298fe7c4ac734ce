"""The event log as server-sent events: what was, then what happens, at once."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from server.api.documents import RunId
from server.coordinator import Coordinator, Here, Reader
from shared.problems import InvalidRequest

router = APIRouter(tags=["events"], dependencies=[Reader])

BATCH = 200
RETRY_MILLISECONDS = 2000
FOR_EVER = 86400.0
LARGEST_ID = 2**63 - 1
After = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="only events with a larger id")]
LastEventId = Annotated[str | None, Header(description="a browser's way to say `after` when it reconnects")]


@router.get("/events", response_class=EventSourceResponse)
async def all_events(
    here: Here, after: After = None, last_event_id: LastEventId = None
) -> AsyncIterable[ServerSentEvent]:
    """Events of all runs, from the first one on or after a given one."""
    async for event in _follow(here, None, _start(after, last_event_id)):
        yield event


@router.get("/runs/{run}/events", response_class=EventSourceResponse)
async def run_events(
    run: RunId, here: Here, after: After = None, last_event_id: LastEventId = None
) -> AsyncIterable[ServerSentEvent]:
    """Events of one run, and the heartbeats of its clients (`progress`, without id, not kept)."""
    async for event in _follow(here, run, _start(after, last_event_id)):
        yield event


def _start(after: int | None, last_event_id: str | None) -> int:
    """A reconnecting browser repeats the old address: what it has seen since counts."""
    if not last_event_id:
        return after or 0
    if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) <= LARGEST_ID):
        raise InvalidRequest(f"Last-Event-ID is {last_event_id[:40]!r}, not an event's id")
    return max(after or 0, int(last_event_id))


async def _follow(here: Coordinator, run: str | None, last: int) -> AsyncIterable[ServerSentEvent]:
    with here.hub.streaming(run) as stream:  # before the first query, so that nothing is missed
        yield ServerSentEvent(comment="events follow", retry=RETRY_MILLISECONDS)
        while True:
            while stream.progress:
                yield ServerSentEvent(event="progress", data=stream.progress.popleft())
            batch = await here.threads.run(here.store.events, last, run, BATCH)
            for found in batch:
                last = found.id
                yield ServerSentEvent(event=found.kind, id=str(found.id), data=found)
            if here.hub.closed:
                return
            if len(batch) < BATCH:
                await stream.wait(here.hub.recheck_seconds or FOR_EVER)
