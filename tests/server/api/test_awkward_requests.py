"""What anybody may send: HEAD everywhere, numbers of 5,000 digits, texts that no database keeps."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from tests.helpers.live_coordinator import (
    CLASSES,
    JOIN,
    TASK,
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    upload_headers,
)

DIGITS = "9" * 5000
VIEWER = "viewer-token-of-the-tests"


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def site(at: Live) -> ManualClient:
    at.create(min_clients=1, rounds=1)
    (site,) = enrolled(at, (10,), (0.25,))
    site.until("train")
    return site


def _get_addresses(at: Live) -> list[str]:
    calls = at.http().get(f"{at.url}/openapi.json").json()["paths"]
    given = {"{run}": "demo", "{n}": "1", "{sha256}": at.run()["initial_model"]}
    addresses = ["/", "/runs", "/runs/demo", "/runs/demo/rounds/1", "/problems", "/docs", "/favicon.ico"]
    for path in [path for path, methods in calls.items() if "get" in methods]:
        for name, value in given.items():
            path = path.replace(name, value)
        addresses.append(path)
    return [*addresses, "/openapi.json", "/static/favicon.svg"]


def test_head_is_get_without_the_body(at: Live, site: ManualClient) -> None:
    addresses = _get_addresses(at)
    assert {"/healthz", "/readyz", "/metrics"} <= set(addresses)
    for path in addresses:
        client = site.http if path.endswith(("/receipt", "/work")) else at.admin
        with client.stream("GET", at.url + path) as answer:
            wanted = answer.status_code, answer.headers.get("content-type")
            if not path.endswith("/events"):
                answer.read()
        head = client.head(at.url + path)  # event streams, too, end with their headers
        assert (head.status_code, head.headers.get("content-type")) == wanted, path
        assert wanted[0] < 400 or path.endswith(("/receipt", "/deletions/demo")), path
        assert head.content == b""
    at.wait_for(lambda: not at.coordinator.hub.open_streams)
    assert at.http().head(f"{at.url}/nothing").status_code == 404


def test_numbers_of_any_length_are_refused(at: Live, site: ManualClient) -> None:
    for answer in (
        at.http().get("/events", headers={"Last-Event-ID": DIGITS}),
        at.http().get("/events", headers={b"Last-Event-ID": "\N{SUPERSCRIPT TWO}".encode()}),
        at.http().get(f"/events?after={DIGITS}"),
        at.http().get(f"/runs/demo/rounds/{DIGITS}"),
        at.http().get(f"/runs/demo/rounds/1?attempt={DIGITS}"),
        at.http().get(f"{at.url}/runs/demo/rounds/{DIGITS}"),
        at.http().get(f"{at.url}/runs/demo/rounds/1?attempt={DIGITS}"),
        site.http.get(f"/work?wait={DIGITS}"),
        site.http.get("/work?wait=nan"),
        site.http.post("/runs/demo/rounds/1/progress", content=f'{{"attempt": {DIGITS}}}'),
        site.http.put(
            f"/runs/demo/rounds/1/update?examples={DIGITS}",
            content=file_of(1.0),
            headers=upload_headers(file_of(1.0)),
        ),
    ):
        assert 400 <= answer.status_code < 500, (answer.request.url, answer.text[:300])
    blob = f"/blobs/{at.run()['initial_model']}"
    assert site.http.get(blob, headers={"Range": f"bytes={DIGITS}-"}).status_code in (200, 416)


@pytest.mark.parametrize("length", [DIGITS, "many", "-1", "1e3", "\N{SUPERSCRIPT TWO}"])
def test_a_content_length_that_is_no_number_is_refused(at: Live, length: str) -> None:
    host, _, port = at.url.removeprefix("http://").rpartition(":")
    for call in ("POST /api/v1/clients", f"PUT /api/v1/blobs/{'0' * 64}"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = f"{call} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode("latin-1"))
            answer = connection.recv(100)
        assert answer == b"" or answer.split()[1][:1] == b"4", answer


@pytest.mark.parametrize(
    "header", [b"Basic \xe9", b"Basic %%%", b"Basic /w==", b"Bearer \xe9", b"\xe9", b"Basic"]
)
def test_an_authorization_that_cannot_be_read_is_refused(
    database_url: str, tmp_path: Path, header: bytes
) -> None:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as at:
        http = at.http()
        for path in ("/runs", "/clients", "/work", f"{at.url}/", f"{at.url}/metrics"):
            assert http.get(path, headers={b"Authorization": header}).status_code == 401, path
        assert http.post("/clients", json={}, headers={b"Authorization": header}).status_code == 401


BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/clients", {"name": "?"}),
    ("POST", "/clients", {"version": "?"}),
    ("POST", "/runs", {"config": {"name": "odd", "task": "?"}}),
    ("POST", "/runs", {"config": {"name": "odd", "task_options": {"any": ["?"]}}}),
    ("POST", "/runs", {"config": {"name": "odd", "task_options": {"?": 1}}}),
    ("POST", "/runs", {"config": {"name": "odd", "classes": ["a", "?"]}}),
    ("POST", "/runs/demo/pause", {"reason": "?"}),
    ("POST", "/runs/demo/stop", {"reason": "?"}),
    ("POST", "/runs/demo/decline", {"reason": "?"}),
    ("POST", "/runs/demo/enrolments", {"task": "?", "examples": 1, "classes": CLASSES}),
    ("POST", "/runs/demo/enrolments", {"task": TASK, "examples": 1, "classes": CLASSES, "device": "?"}),
    ("POST", "/runs/demo/enrolments", {"task": TASK, "examples": 1, "classes": ["?", "b"]}),
    ("POST", "/runs/demo/rounds/1/failure", {"attempt": 1, "code": "x", "reason": "?"}),
    ("POST", "/runs/demo/rounds/1/failure", {"attempt": 1, "code": "?", "reason": "x"}),
    ("PUT", "/runs/demo/rounds/1/metrics", {"loss": 1.0, "examples": 1, "per_category": {"?": 0.5}}),
    ("PUT", "/runs/demo/rounds/1/metrics", {"loss": 1.0, "examples": 1, "extra": {"?": 0.5}}),
    ("PUT", "/runs/demo/discrepancy", {"metric": "?", "value": 1}),
]


def test_texts_that_no_database_keeps_are_refused(at: Live, site: ManualClient) -> None:
    for character in ("\x00", "\ud800", "a\udfff"):
        for method, path, body in BODIES:
            content = json.dumps(body).replace("?", json.dumps(character)[1:-1])
            client = at.admin if path.startswith(("/runs/demo/pause", "/runs/demo/stop")) else site.http
            client = at.admin if path == "/runs" else client
            headers = {"Authorization": f"Bearer {JOIN}"} if path == "/clients" else {}
            headers["Content-Type"] = "application/json"
            answer = client.request(method, path, content=content, headers=headers)
            assert answer.status_code == 422, (path, content, answer.status_code, answer.text)
    for path in ("/runs/%00", "/runs/%00/rounds/1", "/runs/%ED%A0%80"):
        assert at.http().get(at.url + path).status_code == 404, path
        assert 400 <= at.http().get(path).status_code < 500


def test_names_of_tensors_that_no_database_keeps_are_refused(site: ManualClient, at: Live) -> None:
    plain = save({"QQQQQQ": np.zeros(3, np.float32)})
    for escaped in (rb"\u0000", rb"\ud800"):
        body = plain.replace(b"QQQQQQ", escaped)
        answer = site.http.put(
            "/runs/demo/rounds/1/update?attempt=1&examples=10&steps=1&seconds=1",
            content=body,
            headers=upload_headers(body),
        )
        assert answer.status_code == 422, answer.text
    assert "update_invalid" in {event["kind"] for event in at.events()}
