"""Runs are found by words, state and tag: in the API, on the page and by the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddisco.main import app
from tests.helpers.live_coordinator import ADMIN, Live, live


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        opened.create("skin-1", min_clients=2, tags=["clinic"])
        opened.create("skin-2", min_clients=2, algorithm={"name": "fednova"})
        opened.create("lungs", min_clients=2, tags=["clinic", "pilot"])
        assert opened.admin.post("/runs/skin-2/stop", json={"reason": "a mistake"}).status_code == 200
        yield opened


def names(at: Live, **query: str) -> list[str]:
    return [run["run"] for run in at.admin.get("/runs", params=query).json()]


def shown(at: Live, query: str) -> list[str]:
    page = at.admin.get(f"{at.url}/?{query}").text
    return re.findall(r'<tr data-key="([^"]+)"', page)


def test_runs_are_found_by_words_state_and_tag(at: Live) -> None:
    assert names(at) == ["lungs", "skin-2", "skin-1"]
    assert names(at, search="SKIN") == ["skin-2", "skin-1"]
    assert names(at, search="fednova skin") == ["skin-2"]
    assert names(at, state="stopped") == ["skin-2"]
    assert names(at, tag="clinic") == ["lungs", "skin-1"]
    assert names(at, tag="clin") == [], "a tag is whole"
    assert names(at, tag="clinic", search="skin", state="enrolling") == ["skin-1"]
    assert shown(at, "search=skin&tag=clinic") == ["skin-1"]
    assert shown(at, "search=nothing") == []
    assert "No run is like that" in at.admin.get(f"{at.url}/?search=nothing").text
    hostile = at.admin.get(f"{at.url}/", params={"search": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in hostile


def test_tags_are_changed_also_after_the_end_and_a_pinned_run_stands_first(at: Live) -> None:
    changed = at.admin.patch("/runs/skin-2", json={"tags": ["pinned", "oops"]})
    assert (changed.status_code, changed.json()["tags"]) == (200, ["pinned", "oops"]), changed.text
    assert names(at) == ["skin-2", "lungs", "skin-1"]
    assert at.admin.patch("/runs/skin-2", json={"tags": []}).json()["tags"] == []
    for wrong in (["two words"], ["A"], ["x" * 41], [""], [f"t{number}" for number in range(21)], None):
        assert at.admin.patch("/runs/skin-2", json={"tags": wrong}).status_code == 422, wrong
    assert at.run("skin-2")["tags"] == []


def test_a_site_is_told_no_tags(at: Live) -> None:
    site = at.site("curious")
    assert site.enrol("skin-1", 10, index=0).status_code == 200
    view = site.http.get("/runs/skin-1").json()
    assert (view["tags"], view["config"]["tags"]) == ([], [])
    listed = site.http.get("/runs", params={"tag": "clinic"}).json()
    assert listed == [], "nor can it find them out by asking"
    assert "pilot" not in site.http.get("/runs").text


def test_the_commands_tag_and_find(at: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", ADMIN)
    access = ["--url", at.url]
    done = CliRunner().invoke(app, ["run", "change", "skin-1", "--tags", "pilot, pinned", *access])
    assert done.exit_code == 0, done.output
    listed = CliRunner().invoke(app, ["run", "list", "--tag", "pilot", *access]).output
    assert listed.index("skin-1") < listed.index("lungs")
    assert "skin-2" not in listed
    none = CliRunner().invoke(app, ["run", "list", "--search", "nothing", *access])
    assert (none.exit_code, none.output.strip()) == (0, "No run is like that.")
