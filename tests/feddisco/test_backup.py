"""Backup and restore: consistent, incremental, from either database to either; revoked stays revoked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from feddisco.backup import back_up, restore, verify_backup
from feddisco.verify import verify_storage
from server.database.session import make_engine
from server.database.tables import metadata
from server.settings import Settings
from shared.problems import InvalidConfiguration, StorageUnavailable
from tests.helpers.databases import Postgres
from tests.helpers.live_coordinator import (
    JOIN,
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    settings_for,
    sha256,
)

pytestmark = pytest.mark.long


def start_run(at: Live) -> list[ManualClient]:
    """The first of two rounds is completed, one update of the second is in."""
    at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"})
    sites = enrolled(at, (10, 10))
    for place, site in enumerate(sites):
        assert site.until("train")["round"] == 1
        assert site.upload("demo", 1, file_of(10.0 + 2 * place)).status_code == 200
    assert sites[0].until("train")["round"] == 2
    assert sites[0].upload("demo", 2, file_of(20.0)).status_code == 200
    return sites


def _lasting(table: sa.Table) -> sa.Select[*tuple[Any, ...]]:
    """Without what changes while nothing happens."""
    return sa.select(*(column for column in table.c if column.name != "last_seen_at"))


def rows(url: str) -> dict[str, list[tuple[object, ...]]]:
    engine = make_engine(url)
    with engine.connect() as connection:
        found = {
            table.name: list(map(tuple, connection.execute(_lasting(table).order_by(*table.primary_key))))
            for table in metadata.sorted_tables
        }
    engine.dispose()
    return found


def settle(url: str) -> None:
    """As if the coordinator had been off for a while."""
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE installation SET alive_at = NULL")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database to restore to, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'restored.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.empty()
    yield url
    server.drop(url)


def test_a_run_goes_on_from_a_backup_made_while_it_ran(
    database_url: str, target: str, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    with live(database_url, tmp_path / "data") as at:
        sites = start_run(at)
        assert "5 files, 5 of them new" in back_up(at.coordinator.settings, backup)
        assert sites[1].until("train")["round"] == 2
        assert sites[1].upload("demo", 2, file_of(22.0)).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        wanted = at.run()["model"]
        assert "7 files, 2 of them new" in back_up(at.coordinator.settings, backup)
        stored = rows(database_url)
    (first, second) = sorted((backup / "snapshots").iterdir())
    assert verify_backup(backup).faults == verify_backup(backup, first.name).faults == ()

    elsewhere = settings_for(target, tmp_path / "elsewhere")
    restore(elsewhere, backup, later="none")
    kept = rows(target)
    assert '"action":"restored"' in str(kept["audit_log"].pop()[1])
    others = {"installation", "join_tokens"}  # the codes are withdrawn
    assert {name: kept[name] for name in kept if name not in others} == {
        name: stored[name] for name in stored if name not in others
    }
    assert verify_storage(elsewhere).faults == ()

    settle(target)
    with pytest.raises(InvalidConfiguration, match="data already"):
        restore(elsewhere, backup, name=first.name)
    restore(elsewhere, backup, name=first.name, replace=True)
    with live(target, tmp_path / "elsewhere") as at:
        token = sites[1].http.headers["Authorization"].removeprefix("Bearer ")
        site = ManualClient(at.http(token), "site-1")
        assert site.until("train")["round"] == 2
        assert site.upload("demo", 2, file_of(22.0)).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        assert at.run()["model"] == wanted
        ids = [event["id"] for event in at.events()]
        assert len(set(ids)) == len(ids), "numbers go on after those of the backup"
    assert second.is_dir()


def test_a_token_that_was_revoked_after_the_backup_stays_revoked(database_url: str, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
        sites = enrolled(at, (10, 10))
        made = at.admin.post("/join-tokens", json={}).json()
        back_up(at.coordinator.settings, backup)
        assert at.admin.delete("/clients/site-0").status_code == 204
        assert at.admin.delete(f"/join-tokens/{made['id']}").status_code == 204
    tokens = [site.http.headers["Authorization"].removeprefix("Bearer ") for site in sites]

    def answers(folder: Path) -> list[int]:
        with live(database_url, folder) as at:
            join = at.http(made["token"]).post("/clients", json={"name": "late", "version": "test"})
            return [join.status_code, *(at.http(token).get("/work").status_code for token in tokens)]

    settings = settings_for(database_url, tmp_path / "data")
    (tmp_path / "data" / "blobs" / "database-id").write_text(
        next(row[1] for row in rows(database_url)["installation"]) + "\n"  # type: ignore[operator]
    )
    settle(database_url)
    restore(settings, backup, replace=True)
    assert answers(tmp_path / "data") == [401, 401, 200], "the data folder has the list"

    lost = settings_for(database_url, tmp_path / "new")
    settle(database_url)
    with pytest.raises(InvalidConfiguration, match="revoked since"):
        restore(lost, backup, replace=True)
    restore(lost, backup, replace=True, revocations=tmp_path / "data" / "revocations.jsonl")
    assert answers(tmp_path / "new") == [401, 401, 200], "a copy of the list was given"

    settle(database_url)
    restore(settings_for(database_url, tmp_path / "newer"), backup, replace=True, later="all")
    assert answers(tmp_path / "newer") == [401, 401, 401]


def test_join_codes_of_the_backup_are_withdrawn(database_url: str, tmp_path: Path) -> None:
    def join(at: Live, token: str, name: str) -> int:
        return at.http(token).post("/clients", json={"name": name, "version": "test"}).status_code

    backup = tmp_path / "backup"
    with live(database_url, tmp_path / "data") as at:
        once = at.admin.post("/join-tokens", json={"uses": 1}).json()["token"]
        often = at.admin.post("/join-tokens", json={"uses": 5}).json()["token"]
        spent = at.admin.post("/join-tokens", json={"uses": 1}).json()["token"]
        gone = at.admin.post("/join-tokens", json={}).json()["id"]
        assert join(at, spent, "early") == 201
        assert at.admin.delete(f"/join-tokens/{gone}").status_code == 204
        back_up(at.coordinator.settings, backup)
        assert join(at, once, "late") == 201
    settle(database_url)
    settings = settings_for(database_url, tmp_path / "elsewhere")
    said = restore(settings, backup, replace=True, later="none")
    # with that of the settings; the spent and the revoked one were of no use before
    assert "3 join codes were withdrawn" in said
    assert "`feddisco clients invite` makes new ones" in said
    assert '"join_codes_withdrawn":3' in str(rows(database_url)["audit_log"][-1][1])
    with live(database_url, tmp_path / "elsewhere") as at:
        assert [join(at, code, "again") for code in (once, often, spent, JOIN)] == [401] * 4
        made = at.admin.post("/join-tokens", json={}).json()["token"]
        assert join(at, made, "again") == 201
    settle(database_url)
    settings = settings_for(database_url, tmp_path / "elsewhere")
    back_up(settings, backup)
    assert "join code" not in restore(settings, backup, replace=True), "none is left to withdraw"


def test_damage_on_either_side_is_told(database_url: str, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    update = sha256(file_of(10.0))
    with live(database_url, tmp_path / "data") as at:
        start_run(at)
        settings: Settings = at.coordinator.settings
        back_up(settings, backup, keep=1)
        path = backup / "blobs" / update[:2] / update
        path.write_bytes(b"other")
        (fault,) = verify_backup(backup).faults
        assert (fault.part, fault.subject) == ("files", update)
        path.unlink()
        at.coordinator.blobs.path(update).write_bytes(b"other")
        with pytest.raises(StorageUnavailable, match=rf"1 file is lost: {update} ") as told:
            back_up(settings, backup, keep=1)
        assert len(list((backup / "snapshots").iterdir())) == 1
        assert "feddisco verify" in told.value.hint
        assert [fault.subject for fault in verify_backup(backup).faults] == [update]
    settle(database_url)
    incomplete = settings_for(database_url, tmp_path / "incomplete")
    with pytest.raises(StorageUnavailable, match=rf"Restored .* 1 file is lost: {update} ") as told:
        restore(incomplete, backup, replace=True, later="none")
    assert "--replace" in told.value.hint
    assert [fault.subject for fault in verify_storage(incomplete).faults if fault.part == "files"] == [update]
    snapshot = next((backup / "snapshots").iterdir())
    content = bytearray((snapshot / "database.sqlite").read_bytes())
    content[5000] ^= 1
    (snapshot / "database.sqlite").write_bytes(content)
    assert [fault.part for fault in verify_backup(backup).faults] == ["database"]
    with pytest.raises(StorageUnavailable, match="is damaged"):
        restore(settings_for(database_url, tmp_path / "new"), backup, replace=True, later="none")
    shutil.rmtree(backup)
    with pytest.raises(InvalidConfiguration, match="no snapshot"):
        verify_backup(backup)
