"""Server-sent events: from any point on, live, and resumed by what a browser sends."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.helpers.live_coordinator import Live, enrolled, live


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        opened.create(min_clients=1, weighting={"kind": "sizes"})
        yield opened


class Listener:
    """Reads a stream on a thread; ``seen`` are its messages as dictionaries of their lines."""

    def __init__(self, http: httpx.Client, address: str, **more: Any) -> None:
        self.seen: list[dict[str, str]] = []
        self.status = 0
        self.ended = False
        self._arguments = (http, address, more)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        http, address, more = self._arguments
        try:
            with http.stream("GET", address, timeout=60, **more) as answer:
                self.status = answer.status_code
                message: dict[str, str] = {}
                for line in answer.iter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        message[name] = value
                    elif message:
                        self.seen.append(message)
                        message = {}
        except httpx.HTTPError:
            pass
        self.ended = True

    def kinds(self) -> list[str]:
        return [message["event"] for message in self.seen if "event" in message]

    def ids(self) -> list[int]:
        return [int(message["id"]) for message in self.seen if "id" in message]


def test_the_log_from_its_beginning_and_then_live(at: Live) -> None:
    stream = Listener(at.http(), "/runs/demo/events")
    at.wait_for(lambda: "run_created" in stream.kinds())
    before = len(stream.ids())
    enrolled(at, (10,))
    at.wait_for(lambda: len(stream.ids()) > before)
    assert stream.ids() == sorted(stream.ids())
    assert [event["id"] for event in at.events()][: len(stream.ids())] == stream.ids()
    first = json.loads(next(message["data"] for message in stream.seen if "data" in message))
    assert (first["kind"], first["run"], first["actor"]) == ("run_created", "demo", "admin")


def test_a_stream_goes_on_where_it_was(at: Live) -> None:
    enrolled(at, (10,))
    ids = [event["id"] for event in at.events()]
    resumed = Listener(at.http(), f"/runs/demo/events?after={ids[0]}", headers={"Last-Event-ID": str(ids[1])})
    at.wait_for(lambda: len(resumed.ids()) >= len(ids) - 2)
    assert resumed.ids() == ids[2:]
    after = Listener(at.http(), f"/events?after={ids[-2]}")
    at.wait_for(lambda: after.ids() == [ids[-1]])


@pytest.mark.parametrize("place", ["?after=1000000", ""])
def test_a_reader_that_is_ahead_of_a_database_that_was_put_back_hears_what_comes(
    at: Live, place: str
) -> None:
    given = {} if place else {"Last-Event-ID": "1000000"}
    stream = Listener(at.http(), f"/runs/demo/events{place}", headers=given)
    at.wait_for(lambda: at.coordinator.hub.open_streams)
    enrolled(at, (10,))
    at.wait_for(lambda: "client_enrolled" in stream.kinds(), seconds=10)
    assert "run_created" not in stream.kinds()


def test_a_page_that_is_loaded_again_replays_nothing(at: Live) -> None:
    enrolled(at, (10,))
    page = httpx.get(f"{at.url}/runs/demo").text
    address = re.search(r'data-events="/api/v1([^"]+)"', page)
    assert address is not None
    stream = Listener(at.http(), address[1])
    at.wait_for(lambda: at.coordinator.hub.open_streams)
    shown = at.events()[-1]["id"]
    at.admin.post("/runs/demo/pause", json={"reason": "to see it"}).raise_for_status()
    at.wait_for(lambda: "run_paused" in stream.kinds())
    assert min(stream.ids()) > shown


def test_many_streams_ask_the_database_as_often_as_one(at: Live) -> None:
    newest = at.events()[-1]["id"]
    streams = [Listener(at.http(), f"/runs/demo/events?after={newest}") for _ in range(20)]
    at.wait_for(lambda: at.coordinator.hub.open_streams == 20)
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM events" in statement and "max(" not in statement:
            asked.append(statement)

    sa.event.listen(at.coordinator.store.engine, "before_cursor_execute", note)
    enrolled(at, (10,))
    at.wait_for(lambda: all("round_opened" in stream.kinds() for stream in streams))
    sa.event.remove(at.coordinator.store.engine, "before_cursor_execute", note)
    assert len({tuple(stream.ids()) for stream in streams}) == 1
    assert 0 < len(asked) < 10


def test_heartbeats_are_shown_but_not_kept(at: Live) -> None:
    (site,) = enrolled(at, (10,))
    site.until("train")
    stream = Listener(at.http(), f"/runs/demo/events?after={at.events()[-1]['id']}")
    at.wait_for(lambda: at.coordinator.hub.open_streams)
    site.http.post("/runs/demo/rounds/1/progress", json={"attempt": 1, "step": 3, "steps": 9, "loss": 0.5})
    at.wait_for(lambda: "progress" in stream.kinds())
    beat = next(message for message in stream.seen if message.get("event") == "progress")
    assert "id" not in beat
    assert {"client": "site-0", "round": 1, "step": 3}.items() <= json.loads(beat["data"]).items()
    assert "progress" not in {event["kind"] for event in at.events()}


def test_a_stream_of_nothing_is_refused_before_it_begins(at: Live) -> None:
    assert at.http().get("/runs/nowhere/events").status_code == 404
    assert at.http().get("/events", headers={"Last-Event-ID": "yesterday"}).status_code == 422


def test_streams_end_with_the_coordinator(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        stream = Listener(at.http(), "/events")
        at.wait_for(lambda: at.coordinator.hub.open_streams)
    stream._thread.join(timeout=5)
    assert stream.ended
    assert stream.status == 200


def test_an_event_after_a_run_was_deleted_has_a_number_that_nobody_has_seen(at: Live) -> None:
    """Who reads on behind the newest number must not miss what happens after its run has gone."""
    at.create("newest", min_clients=1)
    at.admin.post("/runs/newest/stop", json={})
    seen = at.events(None)[-1]["id"]
    stream = Listener(at.http(), f"/events?after={seen}")
    assert at.admin.delete("/runs/newest").status_code == 200
    at.site("late")
    kinds = [event["kind"] for event in at.admin.get("/log", params={"after": seen}).json()]
    assert kinds == ["run_deleted", "client_registered"]
    at.wait_for(lambda: len(stream.seen) >= 2)
