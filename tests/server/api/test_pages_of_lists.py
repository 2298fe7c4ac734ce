"""Rounds and the event log in pages: with a cursor, a stated maximum, and nothing twice or left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feddisco.admin
from feddisco.admin import AdminClient
from tests.helpers.live_coordinator import ADMIN, JOIN, Live, enrolled, file_of, live


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    """A run of three rounds, the second of them at its second attempt."""
    with live(database_url, tmp_path / "data") as opened:
        opened.create(min_clients=1, rounds=3, weighting={"kind": "sizes"}, evaluate_every=0)
        (site,) = enrolled(opened, (10,))
        for number, attempt in ((1, 1), (2, 1), (2, 2), (3, 1)):
            asked = site.until("train")
            assert (asked["round"], asked["attempt"]) == (number, attempt)
            if (number, attempt) == (2, 1):
                report = {"attempt": 1, "code": "out_of_memory", "reason": "no memory left"}
                site.http.post("/runs/demo/rounds/2/failure", json=report).raise_for_status()
            else:
                site.upload("demo", number, file_of(1.0), attempt=attempt).raise_for_status()
        opened.wait_for(lambda: opened.run()["status"] == "completed")
        yield opened


def walk(at: Live, path: str) -> Iterator[list[dict[str, Any]]]:
    """Page after page, by the header Link."""
    address: str | None = path
    while address is not None:
        answer = at.admin.get(address)
        answer.raise_for_status()
        yield answer.json()
        found = re.fullmatch(r'</api/v1(.+)>; rel="next"', answer.headers.get("Link", ""))
        address = found[1] if found else None


def test_rounds_in_pages_never_part_the_attempts_of_a_round(at: Live) -> None:
    (whole,) = walk(at, "/runs/demo/rounds")
    assert [(view["round"], view["attempt"]) for view in whole] == [(1, 1), (2, 1), (2, 2), (3, 1)]
    assert [len(page) for page in walk(at, "/runs/demo/rounds?limit=1")] == [1, 2, 1]
    assert [len(page) for page in walk(at, "/runs/demo/rounds?limit=2")] == [3, 1]
    assert [len(page) for page in walk(at, "/runs/demo/rounds?after=1&limit=2")] == [3]
    assert [view for page in walk(at, "/runs/demo/rounds?limit=1") for view in page] == whole
    assert list(walk(at, "/runs/demo/rounds?after=3")) == [[]]
    assert at.admin.get("/runs/demo/rounds?limit=101").status_code == 422
    assert at.admin.get("/runs/nowhere/rounds").status_code == 404


def test_the_python_client_reads_all_pages(at: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with AdminClient(at.url, token=ADMIN) as client:
        whole = client.rounds("demo")
        monkeypatch.setattr(feddisco.admin, "ROUNDS_A_PAGE", 1)
        assert client.rounds("demo") == whole


def test_the_log_in_pages(at: Live) -> None:
    whole = at.events()
    pages = list(walk(at, "/runs/demo/log?limit=3"))
    assert [event["id"] for page in pages for event in page] == [event["id"] for event in whole]
    assert {len(page) for page in pages[:-1]} == {3}
    assert [event["id"] for event in at.admin.get("/log").json()] == [
        event["id"] for event in at.events(None)
    ]
    assert at.admin.get(f"/log?after={whole[-1]['id']}").json() == []
    assert at.admin.get("/log?limit=1001").status_code == 422
    assert at.admin.get("/runs/nowhere/log").status_code == 404


def test_a_client_may_get_an_empty_page_that_has_a_next(at: Live) -> None:
    token = at.http(JOIN).post("/clients", json={"name": "other", "version": "test"}).json()["token"]
    answer = at.http(token).get(f"/runs/demo/log?limit=1&after={at.events()[0]['id']}")
    assert (answer.status_code, answer.json()) == (200, [])
    assert answer.headers["Link"].endswith('; rel="next"')


def test_the_page_of_a_run_turns_back_through_its_past(at: Live) -> None:
    def rows(query: str) -> list[str]:
        page = at.http().get(f"{at.url}/runs/demo{query}", headers={"Accept": "text/html"}).text
        return re.findall(r'<tr data-key="(\d+\.\d+)">', page)

    assert rows("") == ["3.1", "2.2", "2.1", "1.1"]
    assert rows("?rounds-before=3") == ["2.2", "2.1", "1.1"]
    assert rows("?rounds-before=1") == []
    page = at.http().get(f"{at.url}/runs/demo?log-before={at.events()[1]['id']}").text
    assert re.findall(r'<tr data-key="(\d+)">', page.partition('id="log"')[2]) == [str(at.events()[0]["id"])]
    assert 'href="?#log"' in page
    assert at.http().get(f"{at.url}/runs/demo?log-before=x").status_code == 404
