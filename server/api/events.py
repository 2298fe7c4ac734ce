"""The event log as server-sent events: past events first, then each new one at once."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from server.api.dependencies import Coordinator, Reader
from server.api.documents import RunId
from server.runs.client_views import event_for, is_progress_for
from server.web.numbers import parse_whole
from shared.problems import InvalidRequest

router = APIRouter(tags=["events"])

BATCH = 200
RETRY_MILLISECONDS = 2000
FOR_EVER = 86400.0
LARGEST_ID = 2**63 - 1
After = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="only events with a larger id")]
LastEventId = Annotated[
    str | None, Header(description="what a browser sends instead of `after` when it reconnects")
]


# Refusals come from dependencies: an endpoint that yields has sent its 200 before its first line runs.


async def _read_start(after: After = None, last_event_id: LastEventId = None) -> int:
    """A browser that reconnects repeats its first address, so the larger of the two counts."""
    if not last_event_id:
        return after or 0
    seen = parse_whole(last_event_id, LARGEST_ID)
    if seen is None:
        raise InvalidRequest(f"Last-Event-ID is {last_event_id[:40]!r}, not an event's id")
    return max(after or 0, seen)


async def _check_run(run: RunId, coordinator: Coordinator) -> str:
    await coordinator.threads.run(coordinator.store.run_state, run)
    return run


Start = Annotated[int, Depends(_read_start)]


@router.get("/events", response_class=EventSourceResponse)
async def all_events(
    coordinator: Coordinator, start: Start, reader: Reader
) -> AsyncIterable[ServerSentEvent]:
    """Events of all runs: the past ones, all or those after a given one, then each new one at once.

    A client gets its own, and those of runs as a whole.
    """
    async for event in _follow(coordinator, None, start, reader):
        yield event


@router.get("/runs/{run}/events", response_class=EventSourceResponse)
async def run_events(
    run: Annotated[str, Depends(_check_run)], coordinator: Coordinator, start: Start, reader: Reader
) -> AsyncIterable[ServerSentEvent]:
    """Events of one run, and the heartbeats of its clients (`progress`, without id, not kept)."""
    async for event in _follow(coordinator, run, start, reader):
        yield event


async def _follow(
    coordinator: Coordinator, run: str | None, last: int, reader: str | None
) -> AsyncIterable[ServerSentEvent]:
    with coordinator.hub.streaming(run) as stream:  # before the first query, so that nothing is missed
        yield ServerSentEvent(comment="events follow", retry=RETRY_MILLISECONDS)
        while True:
            while stream.progress:
                beat = stream.progress.popleft()
                if reader is None or is_progress_for(reader, beat):
                    yield ServerSentEvent(event="progress", data=beat)
            batch = await coordinator.threads.run(coordinator.store.events, last, run, BATCH)
            for found in batch:
                last = found.id
                shown = found if reader is None else event_for(reader, found)
                if shown is not None:
                    yield ServerSentEvent(event=shown.kind, id=str(shown.id), data=shown)
            if coordinator.hub.closed:
                return
            if len(batch) < BATCH:
                await stream.wait(coordinator.hub.recheck_seconds or FOR_EVER)
