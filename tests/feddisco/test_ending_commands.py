"""``feddisco run delete``, ``run archive`` and ``prune`` against a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from feddisco.ending import parse_age
from feddisco.main import app
from shared.problems import InvalidConfiguration
from tests.helpers.live_coordinator import ADMIN, Live, live


@pytest.fixture
def at(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Live]:
    database = tmp_path / "test.sqlite"
    database.write_bytes(migrated_sqlite.read_bytes())
    with live(f"sqlite:///{database}", tmp_path / "data") as opened:
        yield opened


def call(at: Live, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(
        app, [*words, "--url", at.url], input=answer, env={"FEDDISCO_ADMIN_TOKEN": ADMIN, "COLUMNS": "120"}
    )


def names(at: Live, archived: bool = False) -> list[str]:
    return [run["run"] for run in at.admin.get("/runs", params={"archived": archived}).json()]


def make_stopped(at: Live, *runs: str) -> None:
    for run in runs:
        at.create(run)
        at.admin.post(f"/runs/{run}/stop", json={})


def test_deleting_asks_unless_told_not_to(at: Live) -> None:
    make_stopped(at, "first", "second")
    refused = call(at, "run", "delete", "first", answer="n\n")
    assert refused.exit_code == 1
    assert "first: stopped, 0 of 2 rounds, ended 2" in refused.stdout
    assert "Delete run first for good" in refused.stderr
    assert names(at) == ["second", "first"]
    done = call(at, "run", "delete", "first", "--reason", "a mistake", answer="y\n")
    assert (done.exit_code, "Run first is deleted. A record" in done.stdout) == (0, True)
    assert call(at, "run", "delete", "second", "--yes").exit_code == 0
    assert names(at) == []
    listed = call(at, "run", "list", "--deleted").stdout
    assert all(word in listed for word in ("first", "second", "a mistake", "admin"))


def test_pruning_takes_what_ended_long_ago_and_is_not_put_away(at: Live) -> None:
    make_stopped(at, "old", "kept")
    at.create("open")
    assert "kept is put away" in call(at, "run", "archive", "kept").stdout
    assert "No run ended more than 1d ago" in call(at, "prune", "--older-than", "1d").stdout
    refused = call(at, "prune", "--older-than", "0h", answer="n\n")
    assert (refused.exit_code, names(at)) == (1, ["open", "old"])
    assert call(at, "prune", "--older-than", "0h", "--yes").exit_code == 0
    assert names(at) == ["open"]
    assert "kept" in call(at, "run", "list", "--archived").stdout
    assert "listed again" in call(at, "run", "archive", "kept", "--undo").stdout
    assert sorted(names(at)) == ["kept", "open"]
    assert at.admin.get("/deletions/old").json()["reason"] == "pruned: older than 0h"


def test_what_is_not_named_does_not_change(at: Live) -> None:
    at.create("open", keep_updates=3, quorum=1, rounds=2)
    before = at.admin.get("/runs/open").json()["config"]
    done = call(at, "run", "change", "open", "--rounds", "7")
    assert done.exit_code == 0, done.exception
    after = at.admin.get("/runs/open").json()["config"]
    assert after == before | {"rounds": 7}
    assert call(at, "run", "change", "open", "--keep-updates", "all", "--quorum", "half").exit_code == 0
    changed = at.admin.get("/runs/open").json()["config"]
    assert changed == after | {"keep_updates": None, "quorum": None}


def test_what_is_not_possible_is_said_in_the_words_of_the_command(at: Live) -> None:
    make_stopped(at, "ended")
    said = str(call(at, "run", "pause", "ended").exception)
    assert said == (
        "Pausing is not possible: run 'ended' is stopped. Possible while the run is stopped: changing."
    )


def test_a_command_says_once_how_a_run_is_afterwards(at: Live) -> None:
    at.create("going")
    changed = call(at, "run", "change", "going", "--rounds", "7").output
    assert changed.startswith("going has revision 1 and is enrolling: 0 of ")
    ended = call(at, "run", "stop", "going", "--reason", "no longer needed")
    assert ended.output == "going is stopped: no longer needed.\n"
    at.create("bare")
    assert call(at, "run", "stop", "bare").output == "bare is stopped.\n"
    shown = call(at, "run", "show", "bare").output
    assert shown.startswith("bare  stopped  0/")
    assert "nothing" not in shown


def test_an_age_that_is_none_is_refused() -> None:
    for text in ("", "d", "90 d", "-1d", "1y", "999999d"):
        with pytest.raises(InvalidConfiguration, match="is no age"):
            parse_age(text)
