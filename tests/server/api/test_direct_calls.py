"""The calls that are answered before FastAPI are answered as FastAPI answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.direct import DirectCalls
from server.api.polls import DirectPolls
from server.database.migrations import upgrade
from server.web.errors import render
from server.web.protocol import LINE, Line
from shared.problems import Problem
from shared.schemas import SecureAnswer
from shared.secure.messages import Agreement
from tests.helpers.live_coordinator import (
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    sha256,
    upload_headers,
)

REPORT = "attempt=1&steps=3&examples=10"
START = sha256(file_of(0.0))
SIGNED = SecureAnswer(attempt=1, answer=Agreement(index=0, signature=bytes(64))).model_dump_json()
"""An answer to a step of a secure sum, for a run that has none."""


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    upgrade(url)
    with live(url, tmp_path / "data") as found:
        found.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
        yield found


def told(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return answer.status_code, answer.content, headers


def put(site: ManualClient, query: str, body: bytes) -> httpx.Response:
    address = f"/runs/demo/rounds/1/update?{query}"
    return site.http.put(address, content=body, headers=upload_headers(body))


def test_both_ways_give_one_answer(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    assignment = told(site.http.get("/work?wait=0"))
    assert b'"train"' in assignment[1]
    assert told(site.http.get("/work")) == told(site.http.get("/work?wait=0.00000000")) == assignment

    site.http.get(f"/blobs/{START}")  # read, and remembered
    model = told(site.http.get(f"/blobs/{START}"))
    assert model[1] == file_of(0.0)
    other = {"If-None-Match": '"another"'}
    assert told(site.http.get(f"/blobs/{START}", headers=other)) == model

    receipt = told(put(site, REPORT, file_of(1.0)))
    assert receipt[0] == 200
    assert told(put(site, f"{REPORT}&steps=3", file_of(1.0))) == receipt
    waiting = told(site.http.get("/work?wait=0"))
    assert b'"wait"' in waiting[1]
    assert told(site.http.get("/work?wait=0.00000000")) == waiting


@pytest.mark.parametrize(
    ("query", "more", "code"),
    [
        ("attempt=0&steps=3&examples=10", {}, "invalid-request"),
        (f"{REPORT}&loss=nan", {}, "invalid-request"),
        (f"{REPORT}&colour=red", {}, "invalid-request"),
        (REPORT.replace("attempt=1", "attempt=9"), {}, "update-stale"),
        (REPORT, {"Content-Type": "text/plain"}, "unsupported-media-type"),
        (REPORT, {"Content-Digest": "sha-256=:AAAA:"}, "invalid-request"),
    ],
)
def test_refusals_are_those_of_the_catalogue(at: Live, query: str, more: dict[str, str], code: str) -> None:
    site, _ = enrolled(at, (10, 10))
    body = file_of(1.0)
    answer = site.http.put(
        f"/runs/demo/rounds/1/update?{query}", content=body, headers=upload_headers(body, **more)
    )
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.status_code // 100) == (code, 4)
    assert site.http.get("/work?wait=0").json()["kind"] == "train"


def test_what_others_ask_is_refused_as_before(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    assert site.http.get("/work?wait=61").status_code == 422
    assert at.admin.get("/work?wait=0").json()["code"] == "wrong-token"
    assert at.http().get("/work?wait=0").json()["code"] == "missing-token"
    assert at.http("nobody").get(f"/blobs/{START}").json()["code"] == "wrong-token"
    stranger = at.site("stranger")
    assert stranger.http.get(f"/blobs/{START}").json()["code"] == "forbidden"
    assert at.admin.get(f"/blobs/{START}").content == file_of(0.0)
    at.coordinator.end_access("client:site-0")
    assert site.http.get("/work?wait=0").status_code == 200  # looked up again, and not revoked


def test_what_a_worker_sends_never_reaches_fastapi(at: Live) -> None:
    site, _ = enrolled(at, (10, 10))
    site.http.get(f"/blobs/{START}")
    passed: list[str] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(f"{scope['method']} {scope['path']}")
        await render(Problem("behind"))(scope, receive, send)

    def respond(_request: Request, problem: Problem) -> Response:
        return render(problem)

    calls = DirectCalls(behind, coordinator=at.coordinator, respond=respond)
    polls = DirectPolls(calls, coordinator=at.coordinator, respond=respond)

    async def by_line(scope: Scope, receive: Receive, send: Send) -> None:
        await polls({**scope, LINE: Line()}, receive, send)

    async def ask() -> None:
        transport = httpx.ASGITransport(by_line)
        headers = dict(site.http.headers)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://coordinator/api/v1", headers=headers
        ) as http:
            assert (await http.get("/work?wait=0")).json()["kind"] == "train"
            assert (await http.get(f"/blobs/{START}")).content == file_of(0.0)
            body = file_of(1.0)
            address = f"/runs/demo/rounds/1/update?{REPORT}"
            sent = await http.put(address, content=body, headers=upload_headers(body))
            assert sent.status_code == 200
            step = "/runs/demo/rounds/1/step"
            assert (await http.post(step, content=b"[]")).json()["code"] == "invalid-request"
            assert (await http.post(step, content=SIGNED)).json()["code"] == "illegal-transition"
            assert passed == []
            await http.get("/work?wait=61")
            await http.get("/runs")
            await http.head(f"/blobs/{START}")
            await http.put("/runs/demo/update", content=b"")
            await http.post("/runs/demo/step", content=b"")

    asyncio.run(ask())
    assert passed == [
        "GET /api/v1/work",
        "GET /api/v1/runs",
        f"HEAD /api/v1/blobs/{START}",
        "PUT /api/v1/runs/demo/update",
        "POST /api/v1/runs/demo/step",
    ]
