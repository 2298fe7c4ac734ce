"""Nobody stops the coordinator: each limit refuses with its status, is counted, and spares everybody else."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from server.settings import Settings
from server.web.calls import Call
from server.web.limits import Places, Rate
from server.web.protocol import HEADER_BYTES, Connections, bound_protocol
from shared.problems import Busy, TooManyRequests
from tests.helpers.live_coordinator import (
    ADMIN,
    JOIN,
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    sha256,
    upload_headers,
)
from tests.helpers.raw_http import Connection, head

API = "/api/v1"
VIEWER = "viewer-token-of-the-tests"
UPDATE = f"{API}/runs/demo/rounds/1/update?attempt=1&steps=3&examples=10"


@pytest.fixture
def start(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Starts a coordinator with these settings."""
    url = f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'test.sqlite')}"
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(live(url, tmp_path / "data", **settings))


def token_of(site: ManualClient) -> str:
    return str(site.http.headers["Authorization"]).removeprefix("Bearer ")


def invited(at: Live, many: int = 1, **run: Any) -> list[ManualClient]:
    """Sites that are asked to train the first round."""
    at.create(min_clients=many, weighting={"kind": "sizes"}, **run)
    sites = enrolled(at, (10,) * many)
    for site in sites:
        site.until("train")
    return sites


def limited(at: Live) -> dict[str, float]:
    """How often each setting refused, as the metrics tell."""
    text = at.admin.get(f"{at.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("feddisco_limited_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def refused(answer: httpx.Response, status: int, setting: str) -> bool:
    told = answer.json()
    assert (answer.status_code, told.get("limit")) == (status, setting), answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    return True


# ---------------------------------------------------------------- token, then body


BRINGING = [
    ("POST", "/clients"),
    ("POST", "/runs"),
    ("POST", "/runs/demo/enrolments"),
    ("PUT", "/runs/demo/discrepancy"),
    ("POST", "/runs/demo/decline"),
    ("POST", "/runs/demo/rounds/1/progress"),
    ("POST", "/runs/demo/rounds/1/failure"),
    ("PUT", "/runs/demo/rounds/1/metrics"),
    ("PUT", "/runs/demo/rounds/1/update?attempt=1&steps=3&examples=10"),
    ("PUT", f"/blobs/{sha256(b'')}"),
    ("POST", "/join-tokens"),
]


def test_a_wrong_token_is_refused_before_any_byte_of_the_body(start: Callable[..., Live]) -> None:
    at = start()
    at.create()
    for method, path in BRINGING:
        for length in ({"Content_Length": 769_000}, {"Transfer_Encoding": "chunked"}):
            for token in ("a-wrong-token-of-nobody", None):
                with Connection(at.url) as connection:
                    told = connection.send(head(method, API + path, token, **length)).answer()
                    assert (told[0], told[1]["status"]) == (401, 401), path


def test_json_is_bounded_by_the_kind_of_call(start: Callable[..., Live]) -> None:
    at = start()
    (site,) = invited(at)
    small, large = b"[" + b" " * 2**16, b"[" + b" " * 2**20
    for path, body in (
        ("/runs/demo/rounds/1/progress", small),
        ("/runs/demo/rounds/1/failure", small),
        ("/runs/demo/decline", small),
        ("/runs/demo/enrolments", large),
    ):
        for sent in (body, iter([body[:1000], body[1000:]])):  # announced, and in chunks
            answer = site.http.post(path, content=sent)
            assert (answer.status_code, answer.json()["code"]) == (413, "too-large"), path
        assert site.http.post(path, content=body[: len(body) // 2]).status_code == 422  # read, and no JSON
    assert at.http(JOIN).post("/clients", content=small).status_code == 413


def test_a_body_that_stops_coming_is_given_up(start: Callable[..., Live]) -> None:
    at = start(stall_seconds=0.3)
    (site,) = invited(at)
    request = head("POST", f"{API}/runs/demo/decline", token_of(site), Content_Length=1000)
    with Connection(at.url) as connection:
        status, told = connection.send(request + b'{"reason": "').answer()
        assert (status, told["code"]) == (408, "request-timeout")
        assert connection.closed_after() < 10  # nor is the rest waited for


def test_a_body_that_trickles_is_given_up(start: Callable[..., Live]) -> None:
    at = start(stall_seconds=0.5)
    (site,) = invited(at)
    digest = upload_headers(b"x")["Content-Digest"]
    kind = {"Content_Type": "application/octet-stream", "Content_Digest": digest}
    with Connection(at.url) as connection:
        connection.send(head("PUT", UPDATE, token_of(site), Content_Length=900, **kind))
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.05):
                connection.send(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert connection.answer()[1]["code"] == "request-timeout"
        finally:
            ended.set()
            sender.join()


# ---------------------------------------------------------------- places


@contextmanager
def stopped_uploads(at: Live, site: ManualClient, many: int) -> Iterator[list[Connection]]:
    """Uploads of 40 kB that are stopped before the end."""
    digest = upload_headers(b"x")["Content-Digest"]
    kind = {"Content_Type": "application/octet-stream", "Content_Digest": digest}
    with ExitStack() as stack:
        opened = [stack.enter_context(Connection(at.url)) for _ in range(many)]
        for connection in opened:
            connection.send(head("PUT", UPDATE, token_of(site), Content_Length=900, **kind) + b"x" * 500)
        yield opened


def test_one_participants_stopped_uploads_hold_three_places_and_not_for_ever(
    start: Callable[..., Live], tmp_path: Path
) -> None:
    at = start(stall_seconds=6.0)  # long enough for twelve connections on a busy machine
    site, honest = invited(at, 2)
    with stopped_uploads(at, site, 12) as opened:
        at.wait_for(lambda: limited(at).get("max_uploads_per_client") == 9)
        body = file_of(1.0)
        assert honest.upload("demo", 1, body).status_code == 200
        assert sorted(connection.answer()[0] for connection in opened) == [408] * 3 + [429] * 9
    assert site.upload("demo", 1, body).status_code == 200
    at.wait_for(lambda: not list((tmp_path / "data" / "blobs" / "incoming").iterdir()))


def test_uploads_of_all_have_a_limit_too(start: Callable[..., Live]) -> None:
    at = start(max_uploads=2, stall_seconds=6.0)
    site, honest = invited(at, 2)
    with stopped_uploads(at, site, 2):
        at.wait_for(lambda: at.coordinator.gate.places[Call.UPLOAD].taken == 2)
        assert refused(honest.upload("demo", 1, file_of(1.0)), 503, "max_uploads")
    at.wait_for(lambda: honest.upload("demo", 1, file_of(1.0)).status_code == 200)


def test_one_client_polls_so_many_times_at_once(start: Callable[..., Live]) -> None:
    at = start(max_polls_per_client=2)
    site, other = at.site("site"), at.site("other")
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(Connection(at.url))
            connection.send(head("GET", f"{API}/work?wait=30", token_of(site)))
        at.wait_for(lambda: at.coordinator.hub.waiting_polls == 2)
        assert refused(site.http.get("/work?wait=1"), 429, "max_polls_per_client")
        assert other.work() is None
    at.wait_for(lambda: site.http.get("/work").status_code == 200)  # whoever goes away frees his place


def test_streams_by_address_and_in_all(start: Callable[..., Live]) -> None:
    at = start(max_streams=3, max_streams_per_address=2)
    with ExitStack() as stack:

        def opened(address: str) -> int:
            connection = stack.enter_context(Connection(at.url))
            connection.send(head("GET", f"{API}/events", ADMIN, X_Forwarded_For=address))
            return int(connection.socket.recv(12)[9:])

        assert [opened("192.0.2.1"), opened("192.0.2.1"), opened("192.0.2.1")] == [200, 200, 429]
        assert [opened("192.0.2.2"), opened("192.0.2.2")] == [200, 503]
    assert limited(at) == {"max_streams": 1, "max_streams_per_address": 1}
    at.wait_for(lambda: not at.coordinator.hub.open_streams)


def test_connections_have_a_limit(start: Callable[..., Live]) -> None:
    at = start(max_connections=16)
    used = at.coordinator.connections.places.taken
    with ExitStack() as stack:
        opened = [stack.enter_context(Connection(at.url)) for _ in range(17 - used)]
        at.wait_for(lambda: at.coordinator.connections.places.taken == 16)
        status, told = opened[-1].answer()
        assert (status, told["code"], told["limit"]) == (503, "busy", "max_connections")
        assert opened[0].send(head("GET", "/healthz")).answer()[0] == 200
    at.wait_for(lambda: at.coordinator.connections.places.taken <= used)
    assert limited(at) == {"max_connections": 1}


class Wire(asyncio.Transport):
    """A connection from ``address`` on which nothing comes."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1), "sockname": ("192.0.2.1", 8000)})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        """It is refused."""


@pytest.mark.parametrize(
    ("proxies", "trusted"),
    [
        ("10.0.0.0/8", "10.1.2.3"),
        ("192.0.2.9, 10.1.2.3", "10.1.2.3"),
        ("2001:db8::/32", "2001:db8::7"),
        ("*", "10.1.2.3"),
    ],
)
def test_a_proxy_is_not_limited_as_one_client(tmp_path: Path, proxies: str, trusted: str) -> None:
    """However uvicorn is told whom to believe: also by a network, or in a list with spaces."""

    async def connect(address: str) -> list[bytes]:
        settings = Settings(data_folder=tmp_path, max_connections_per_address=4)
        kind = bound_protocol(Connections(settings, lambda _: None))
        config = uvicorn.Config(Starlette(), ws="none", log_config=None, forwarded_allow_ips=proxies)
        wires = [Wire(address) for _ in range(6)]
        for wire in wires:
            protocol = kind(config=config, server_state=ServerState(), app_state={})
            protocol.connection_made(wire)
        return [wire.written for wire in wires]

    assert asyncio.run(connect(trusted)) == [b""] * 6
    if proxies != "*":
        assert [written != b"" for written in asyncio.run(connect("192.0.2.10"))] == [False] * 4 + [True] * 2


# ---------------------------------------------------------------- connections that are for nothing


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n", b"\r\n\r\n"])
def test_headers_that_do_not_come_are_not_waited_for(start: Callable[..., Live], sent: bytes) -> None:
    at = start(header_seconds=0.3)
    with Connection(at.url) as connection:
        status, told = connection.send(sent).answer()
        assert (status, told["code"]) == (408, "request-timeout")
        assert connection.closed_after() < 5


def _send_slowly(connection: Connection, data: bytes) -> None:
    for byte in data:
        connection.send(bytes([byte]))
        time.sleep(0.05)


def _send_headers(connection: Connection, many: int) -> None:
    for number in range(many):
        connection.send(b"X-Word-%d: " % number + b"x" * 1000 + b"\r\n")


def test_headers_that_trickle_are_not_waited_for(start: Callable[..., Live]) -> None:
    at = start(header_seconds=0.5)
    with Connection(at.url) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(ConnectionError):
            _send_slowly(connection, b"x" * 200)


def test_stray_bytes_after_an_answer_hold_no_connection(start: Callable[..., Live]) -> None:
    at = start(header_seconds=0.3)
    with Connection(at.url) as connection:
        assert connection.send(head("GET", "/healthz")).answer()[0] == 200
        assert connection.send(head("GET", "/healthz")).answer()[0] == 200
        connection.send(b"\r\n")
        assert connection.closed_after() < 5


def test_headers_without_end_are_cut_off(start: Callable[..., Live]) -> None:
    at = start()
    with Connection(at.url) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            _send_headers(connection, 10_000)
    with Connection(at.url) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\nX-Word: " + b"x" * HEADER_BYTES)
        assert connection.answer()[1]["code"] == "headers-too-large"


def test_several_requests_in_one_packet_are_answered_in_turn(start: Callable[..., Live]) -> None:
    at = start(header_seconds=1.0)
    with Connection(at.url) as connection:
        connection.send(head("GET", "/healthz") * 3)
        assert [connection.answer()[0] for _ in range(3)] == [200] * 3
        post = head("POST", f"{API}/clients", "a-wrong-token-of-nobody", Content_Length=2) + b"{}"
        connection.send(post + head("GET", "/healthz"))
        assert [connection.answer()[0] for _ in range(2)] == [401, 200]


def test_who_does_not_read_an_answer_is_left(start: Callable[..., Live]) -> None:
    at = start(stall_seconds=0.5)
    body = b"\0" * (32 * 2**20)
    put = at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
    assert put.status_code == 204
    with Connection(at.url, receive_buffer=4096) as connection:
        connection.send(head("GET", f"{API}/blobs/{sha256(body)}", ADMIN))
        at.wait_for(lambda: at.coordinator.gate.places[Call.DOWNLOAD].taken == 1)
        at.wait_for(lambda: at.coordinator.gate.places[Call.DOWNLOAD].taken == 0)


def test_who_reads_an_answer_slowly_is_waited_for(start: Callable[..., Live]) -> None:
    """The timer was set once, and no progress put it off: a slow line never got a large model."""
    at = start(stall_seconds=0.5)
    body = b"\0" * (32 * 2**20)
    put = at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
    assert put.status_code == 204
    with Connection(at.url, receive_buffer=4096) as connection:
        connection.send(head("GET", f"{API}/blobs/{sha256(body)}", ADMIN))
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert connection.socket.recv(4096)
            time.sleep(0.02)
        assert at.coordinator.gate.places[Call.DOWNLOAD].taken == 1
        at.wait_for(lambda: at.coordinator.gate.places[Call.DOWNLOAD].taken == 0)  # it has stopped


# ---------------------------------------------------------------- rates


def test_heartbeats_changes_and_requests_have_rates(start: Callable[..., Live]) -> None:
    at = start(heartbeats_per_minute=2, changes_per_minute=5, requests_per_minute=30)
    (site,) = invited(at)

    def beat() -> httpx.Response:
        return site.http.post("/runs/demo/rounds/1/progress", json={"attempt": 1})

    assert [beat().status_code for _ in range(2)] == [200, 200]
    assert refused(beat(), 429, "heartbeats_per_minute")
    decline = [site.http.post("/runs/nothing/decline", json={"reason": ""}) for _ in range(5)]
    assert [answer.status_code for answer in decline[:4]] == [404] * 4
    assert refused(decline[-1], 429, "changes_per_minute")
    answers = [site.http.get("/work") for _ in range(30)]
    assert refused(answers[-1], 429, "requests_per_minute")
    assert at.site("another").until("enrol")  # nobody else is meant


def test_what_a_client_reads_counts_as_its_requests(start: Callable[..., Live]) -> None:
    at = start(requests_per_minute=5)
    site, other = at.site("site"), at.site("other")
    assert [site.http.get("/runs").status_code for _ in range(5)] == [200] * 5
    assert refused(site.http.get("/runs"), 429, "requests_per_minute")
    assert refused(site.http.get("/events"), 429, "requests_per_minute")
    assert other.http.get("/runs").status_code == 200
    for _ in range(7):  # people are many behind one token, or behind none
        assert at.http().get("/runs").status_code == at.admin.get("/runs").status_code == 200


def test_a_client_whose_uploads_are_refused_waits(start: Callable[..., Live]) -> None:
    at = start(refused_uploads_per_minute=2)
    site, honest = invited(at, 2)
    assert [site.upload("demo", 1, b"no tensors").status_code for _ in range(2)] == [422, 422]
    events = len(at.events())
    assert refused(site.upload("demo", 1, b"no tensors"), 429, "refused_uploads_per_minute")
    assert len(at.events()) == events  # nor does it fill the event log
    assert honest.upload("demo", 1, file_of(1.0)).status_code == 200


def test_wrong_tokens_have_a_rate_and_right_ones_have_none(start: Callable[..., Live]) -> None:
    at = start(wrong_tokens_per_minute=3)
    site, stranger = at.site("site"), at.http("a-wrong-token-of-nobody")
    assert [stranger.get("/work").status_code for _ in range(3)] == [401] * 3
    assert refused(stranger.get("/work"), 429, "wrong_tokens_per_minute")
    assert refused(at.http("another-wrong-token").post("/clients", json={}), 429, "wrong_tokens_per_minute")
    assert at.http().get("/runs").status_code == 200  # without a token nothing is guessed
    assert site.work() is None
    assert at.admin.get("/clients").status_code == 200
    assert at.http(JOIN).post("/clients", json={}).status_code == 201


def test_wrong_passwords_of_a_browser_have_the_same_rate(start: Callable[..., Live]) -> None:
    """Tokens were guessed by `Authorization: Basic` without any limit."""
    at = start(wrong_tokens_per_minute=3, viewer_token=VIEWER)
    guesses = [("me", f"a-wrong-password-{number}") for number in range(3)]
    assert [at.http().get("/runs", auth=guess).status_code for guess in guesses] == [401] * 3
    assert refused(at.http().get("/runs", auth=("me", "another-one")), 429, "wrong_tokens_per_minute")
    assert refused(at.http("another-wrong-token").get("/runs"), 429, "wrong_tokens_per_minute")
    for right in (VIEWER, ADMIN):
        assert at.http().get("/runs", auth=("me", right)).status_code == 200
    assert at.http().get("/runs").status_code == 401  # without a token nothing is guessed


def test_where_reading_is_open_passwords_are_meant_for_a_proxy(start: Callable[..., Live]) -> None:
    at = start(wrong_tokens_per_minute=3, open_pages=True)
    for number in range(5):
        assert at.http().get("/runs", auth=("me", f"the-proxys-{number}")).status_code == 200
    assert at.http("a-wrong-token-of-nobody").get("/runs").status_code == 401, "nothing was counted"


def test_registrations_have_a_rate(start: Callable[..., Live]) -> None:
    at = start(registrations_per_minute=2)
    assert [at.http(JOIN).post("/clients", json={}).status_code for _ in range(2)] == [201, 201]
    assert refused(at.http(JOIN).post("/clients", json={}), 429, "registrations_per_minute")
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}  # by a proxy of this machine, which is believed
    assert at.http(JOIN).post("/clients", json={}, headers=elsewhere).status_code == 201


# ---------------------------------------------------------------- the arithmetic


def test_a_bucket_fills_evenly_and_not_above_its_brim() -> None:
    now = [0.0]
    rate = Rate("letters", per_minute=60, setting="x", monotonic=lambda: now[0])
    for _ in range(60):
        rate.take("anna")
    with pytest.raises(TooManyRequests) as caught:
        rate.take("anna")
    assert caught.value.extra == {"limit": "x", "retry_after_seconds": 1}
    rate.take("ben")
    now[0] = 2.0
    rate.take("anna")
    rate.take("anna")
    with pytest.raises(TooManyRequests):
        rate.take("anna")
    now[0] = 10_000.0
    for _ in range(60):
        rate.take("anna")
    with pytest.raises(TooManyRequests):
        rate.take("anna")
    rate.charge("anna")  # below zero it does not go
    now[0] += 1.0
    rate.take("anna")


def test_places_are_given_back_whatever_happens() -> None:
    places = Places("doors", most=2, setting="all", most_each=1, setting_each="each")
    with pytest.raises(ZeroDivisionError), places.hold("anna"):
        raise ZeroDivisionError
    with places.hold("anna"), places.hold(None):
        with pytest.raises(TooManyRequests), places.hold("anna"):
            pass
        with pytest.raises(Busy), places.hold("ben"):
            pass
    assert places.taken == 0
