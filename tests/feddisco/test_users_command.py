"""``feddisco users`` and ``feddisco audit`` against a real coordinator, as a person types them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from feddisco.main import app
from shared.problems import Forbidden, InvalidConfiguration, NotFound, WrongToken
from tests.helpers.live_coordinator import ADMIN, Live, live


@pytest.fixture
def at(migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    with live(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path / "data") as opened:
        opened.create()
        monkeypatch.setenv("FEDDISCO_URL", opened.url)
        monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", ADMIN)
        yield opened


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_a_person_acts_with_a_token_of_its_own(at: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    added = run("users", "add", "maria", "--role", "operator", "--run", "demo")
    token = added.stdout.strip()
    assert "maria is operator for demo" in added.stderr
    monkeypatch.setenv("FEDDISCO_TOKEN", token)
    run("run", "stop", "demo", "--reason", "enough")
    assert at.events()[-1]["actor"] == "user:maria"
    refused = CliRunner().invoke(app, ["users", "list"])
    assert isinstance(refused.exception, Forbidden)
    monkeypatch.delenv("FEDDISCO_TOKEN")
    listed = run("users", "list").output
    assert all(word in listed for word in ("maria", "operator", "demo", "valid"))
    renewed = run("users", "renew", "maria").stdout.strip()
    for given, status in ((token, 401), (renewed, 200)):
        found = httpx.get(f"{at.url}/api/v1/runs", headers={"Authorization": f"Bearer {given}"})
        assert found.status_code == status
    assert "maria is revoked" in run("users", "revoke", "maria").output
    assert "revoked" in run("users", "list").output
    monkeypatch.setenv("FEDDISCO_TOKEN", "a-token-that-nobody-has")
    assert isinstance(CliRunner().invoke(app, ["run", "pause", "demo"]).exception, WrongToken)


def test_a_join_code_is_revoked_by_its_number(at: Live) -> None:
    token = run("clients", "invite", "--name", "north", "--token-only").stdout.strip()
    at.site("someone")  # by the coordinator's own join token, number 1
    listed = run("clients", "invitations").output
    assert ("north" in listed, "any number" in listed, token in listed) == (True, True, False)
    (number,) = [each["id"] for each in at.admin.get("/join-tokens").json() if each["name"] == "north"]
    assert f"Join code {number} is revoked" in run("clients", "uninvite", str(number)).output
    assert "revoked" in run("clients", "invitations").output
    refused = at.http(token).post("/clients", json={"name": "north", "version": "test"})
    assert refused.status_code == 401
    run("clients", "invite", "--name", "south", "--days", "0.000001")
    run("clients", "invite", "--name", "west")
    time.sleep(1.1)  # a code lasts a second at least
    rows = {name: line for line in run("clients", "invitations").output.splitlines() for name in line.split()}
    assert "expired" in rows["south"]
    assert "valid" in rows["west"]
    unknown = CliRunner().invoke(app, ["clients", "uninvite", "99"])
    assert isinstance(unknown.exception, NotFound)
    assert "feddisco clients invitations" in unknown.exception.hint


def test_the_audit_log_is_exported_and_verified(at: Live, tmp_path: Path) -> None:
    for name in ("maria", "vera"):
        run("users", "add", name)
    file = tmp_path / "audit.jsonl"
    said = run("audit", "export", "--out", str(file)).stderr
    lines = file.read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(1, len(lines) + 1))
    head = said.strip().rpartition(" ")[2]
    database = (
        "--data-folder",
        str(tmp_path / "data"),
        "--database-url",
        f"sqlite:///{tmp_path / 'test.sqlite'}",
    )
    for given in ((str(file),), database):
        assert f"the newest has the hash {head}" in run("audit", "verify", "--head", head, *given).output
    assert len(run("audit", "export", "--after", "2").stdout.splitlines()) == len(lines) - 2
    file.write_text("".join(f"{line}\n" for line in lines).replace("maria", "mario"))
    assert "does not follow the one before it" in run("audit", "verify", str(file), code=1).output
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.sqlite'}")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE audit_log SET entry = replace(entry, 'maria', 'mario')"))
    engine.dispose()
    assert "was changed" in run("audit", "verify", *database, code=1).output
    assert "audit: entry" in run("verify", *database, code=1).output


LONG = "x" * 2001


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "stop", "demo", "--reason", LONG), "demo cannot be told to stop: reason"),
        (("run", "pause", "demo", "--reason", LONG), "demo cannot be told to pause: reason"),
        (("run", "refuse", "demo", "site", "--reason", LONG), "site cannot be refused: reason"),
        (("run", "rewind", "demo", "--round", "9" * 22), "demo cannot go back: round"),
        (("clients", "invite", "--days", "inf"), "--days: inf is no number of days"),
        (("clients", "invite", "--days", "1e308"), "is no number of days"),
        (("clients", "invite", "--address", "bad/adr"), "--address: 'bad/adr' is not a web address"),
        (("run", "model", "demo", "."), ". is a folder. Name the file to write."),
        (("run", "export", "demo", "--out", "."), ". is a folder. Name the file to write."),
        (("run", "card", "demo", "--out", "."), ". is a folder. Name the file to write."),
        (("demo", "--port", "70000"), "ports go from 0 to 65535"),
    ],
    ids=lambda given: " ".join(given)[:30] if isinstance(given, tuple) else "",
)
def test_what_cannot_be_is_said_before_anything_is_done(at: Live, words: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, InvalidConfiguration), refused.exception
    assert said in str(refused.exception)
    assert at.run()["status"] == "enrolling"
    assert len(at.admin.get("/join-tokens").json()) == 1, "the one of the fixture"
