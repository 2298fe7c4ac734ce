"""Runs after their end: put away, deleted but for a record, and what a crash or a backup leaves of that."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from feddisco.backup import back_up, restore
from server.clock import utc_now
from server.database.session import make_engine
from server.database.tables import metadata
from server.removals import FILE, Removals, RemovedRun
from server.runs.verification import verify
from shared.json_lines import FileLines
from tests.helpers.live_coordinator import Live, enrolled, file_of, live, settings_for, sha256

UPDATES = (file_of(1.0), file_of(4.0))
MODEL = sha256(file_of(2.5))
CHILDREN = ("enrolments", "rounds", "participants", "evaluations", "events")


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def train(at: Live) -> None:
    """The run "demo" with two clients and one round, completed."""
    at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
    for site, body in zip(enrolled(at, (10, 10)), UPDATES, strict=True):
        assert site.upload("demo", 1, body).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")


def make_old(at: Live) -> None:
    for path in at.coordinator.blobs.folder.glob("[0-9a-f][0-9a-f]/*"):
        os.utime(path, (time.time() - 700,) * 2)


def count_rows(at: Live, run: str = "demo") -> dict[str, int]:
    with at.coordinator.store.engine.connect() as connection:
        return {
            name: connection.scalar(
                sa.select(sa.func.count())
                .select_from(metadata.tables[name])
                .where(metadata.tables[name].c.run == run)
            )
            or 0
            for name in ("runs", *CHILDREN)
        }


def stored(at: Live) -> set[str]:
    return {path.name for path in at.coordinator.blobs.folder.glob("[0-9a-f][0-9a-f]/*")}


def test_a_deleted_run_leaves_a_record_and_no_files(at: Live) -> None:
    train(at)
    at.create("other", min_clients=1)
    make_old(at)
    assert all(count_rows(at)[name] for name in ("runs", "enrolments", "rounds", "participants", "events"))
    lines = at.coordinator.store.events(0, "demo")
    log = b"".join(event.model_dump_json().encode() + b"\n" for event in lines)
    answer = at.admin.delete("/runs/demo", params={"reason": "it was a trial"})
    assert answer.status_code == 200, answer.text
    assert not any(count_rows(at).values())
    initial = at.run("other")["initial_model"]
    assert stored(at) == {initial}, "of the same content as demo's: the other run needs it"
    assert at.coordinator.store.recorded_blobs().keys() == {initial}
    assert verify(at.coordinator.store, at.coordinator.blobs).faults == ()
    kept = answer.json()
    assert at.admin.get("/deletions/demo").json() == kept
    assert (kept["actor"], kept["reason"]) == ("admin", "it was a trial")
    record = kept["record"]
    assert (record["status"], record["completed_rounds"], record["models"]) == ("completed", 1, [MODEL])
    assert record["config"]["name"] == "demo"
    assert [(c["client"], c["index"], c["rounds"], c["mean_weight"]) for c in record["clients"]] == [
        ("site-0", 0, 1, 0.5),
        ("site-1", 1, 1, 0.5),
    ]
    assert (record["events"], record["events_sha256"]) == (len(lines), hashlib.sha256(log).hexdigest())
    (event,) = [found for found in at.events(None) if found["kind"] == "run_deleted"]
    assert event["detail"] == {"run": "demo", "reason": "it was a trial", "completed_rounds": 1}
    assert event["actor"] == "admin"
    page = at.admin.get(f"{at.url}/").text
    assert "1 deleted run" in page
    assert "it was a trial" in page


def test_a_deleted_run_is_gone_for_everybody(at: Live) -> None:
    at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
    (site,) = enrolled(at, (10,))
    assert site.until("train")["round"] == 1
    at.admin.post("/runs/demo/stop", json={})
    assert at.admin.delete("/runs/demo").status_code == 200
    assert site.work() is None
    refused = site.upload("demo", 1, file_of(1.0))
    assert (refused.status_code, refused.json()["code"]) == (404, "not-found")
    assert at.admin.delete("/runs/demo").status_code == 404
    assert [view["run"] for view in at.admin.get("/deletions").json()] == ["demo"]
    assert site.http.get("/deletions").status_code in (401, 403), "no client reads of other clients"


def test_a_run_that_goes_on_is_not_deleted_and_a_name_is_given_once(at: Live) -> None:
    request = at.create(min_clients=2)
    for call in (at.admin.delete("/runs/demo"), at.admin.post("/runs/demo/archive")):
        assert (call.status_code, call.json()["code"]) == (409, "illegal-transition")
        assert "feddisco run stop demo" in call.json()["hint"]
    assert not (at.coordinator.settings.data_folder / FILE).exists(), "nothing to be done at the next start"
    at.admin.post("/runs/demo/stop", json={})
    assert at.admin.delete("/runs/demo").status_code == 200
    again = at.admin.post(
        "/runs",
        json={
            "config": request["config"],
            "initial": {"digest": request["initial_model"], "manifest": request["manifest"]},
        },
    )
    assert (again.status_code, again.json()["code"]) == (409, "name-taken"), again.text
    assert "was deleted on" in again.json()["detail"]


def test_only_the_admin_deletes(at: Live) -> None:
    train(at)
    site = at.site("curious")
    for call in (("DELETE", "/runs/demo"), ("POST", "/runs/demo/archive")):
        assert site.http.request(*call).status_code == 403
        assert at.http().request(*call).status_code == 401
    assert at.run()["status"] == "completed"


def test_an_archived_run_is_not_listed_and_otherwise_as_before(at: Live) -> None:
    train(at)
    assert at.admin.post("/runs/demo/archive").json()["archived_at"] is not None
    at.admin.post("/runs/demo/archive")  # again: nothing new
    assert at.admin.get("/runs").json() == []
    assert [run["run"] for run in at.admin.get("/runs", params={"archived": True}).json()] == ["demo"]
    assert "1 archived run" in at.admin.get(f"{at.url}/").text
    assert "no longer listed" in at.admin.get(f"{at.url}/runs/demo").text
    assert at.admin.get("/runs/demo/rounds/1").json()["model"] == MODEL
    make_old(at)
    assert at.coordinator.runner.collect_unneeded() == 0
    assert at.admin.post("/runs/demo/unarchive").json()["archived_at"] is None
    assert [run["run"] for run in at.admin.get("/runs").json()] == ["demo"]
    kinds = [event["kind"] for event in at.events()]
    assert (kinds.count("run_archived"), kinds.count("run_unarchived")) == (1, 1)


def test_a_deletion_killed_after_its_note_is_ended_by_the_next_start(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        train(at)
        created_at = at.coordinator.store.find_ended("demo")
        noted = RemovedRun("demo", created_at, "admin", "a trial")
        Removals(FileLines(at.coordinator.settings.data_folder / FILE)).add_run(noted, utc_now())
    with live(database_url, tmp_path / "data") as at:
        assert at.admin.get("/runs/demo").status_code == 404
        kept = at.admin.get("/deletions/demo").json()
        assert (kept["actor"], kept["reason"]) == ("admin", "a trial")


def test_a_deletion_killed_after_its_commit_leaves_files_that_the_next_start_deletes(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        train(at)
        make_old(at)
        at.coordinator.store.delete_run("demo", reason="", actor="admin", now=utc_now())
        assert len(stored(at)) == 4
    with live(database_url, tmp_path / "data") as at:
        at.wait_for(lambda: not stored(at) and not at.coordinator.store.recorded_blobs())


@pytest.mark.parametrize("with_deleted", [False, True])
def test_a_restored_backup_brings_a_deleted_run_back_only_if_asked(
    database_url: str, tmp_path: Path, with_deleted: bool
) -> None:
    settings = settings_for(database_url, tmp_path / "data")
    with live(database_url, tmp_path / "data") as at:
        train(at)
        back_up(settings, tmp_path / "backup")
        make_old(at)
        assert at.admin.delete("/runs/demo").status_code == 200
        assert MODEL not in stored(at)
    engine = make_engine(database_url)
    with engine.begin() as connection:  # as if it had been off for a while
        connection.execute(metadata.tables["installation"].update().values(alive_at=None))
    engine.dispose()
    restore(settings, tmp_path / "backup", replace=True, later="none", with_deleted=with_deleted)
    with live(database_url, tmp_path / "data") as at:
        found = at.admin.get("/runs/demo")
        assert (found.status_code == 200) == with_deleted
        if with_deleted:
            assert found.json()["model"] == MODEL
            assert verify(at.coordinator.store, at.coordinator.blobs).faults == ()
