"""What may be wrong round a backup: foreign lists, damage, older snapshots, two at once, odd names."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from feddisco.backup import back_up, restore, verify_backup
from server.database.copying import file_url
from server.database.migrations import downgrade, head, upgrade
from server.settings import Settings
from shared.problems import InvalidConfiguration, StorageUnavailable
from shared.wire.digests import digest_of
from tests.helpers.live_coordinator import live, settings_for

HASH = "ab" * 32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a coordinator's ``data`` of one run, and a ``backup`` of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data").mkdir()
    upgrade(f"sqlite:///{folder / 'data' / 'feddisco.db'}")
    with live(f"sqlite:///{folder / 'data' / 'feddisco.db'}", folder / "data") as at:
        at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"})
        back_up(at.coordinator.settings, folder / "backup")
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "home")


def settings_in(home: Path, name: str = "data") -> Settings:
    (home / name).mkdir(exist_ok=True)
    return settings_for(f"sqlite:///{home / name / 'feddisco.db'}", home / name)


def snapshot_of(home: Path) -> Path:
    return sorted((home / "backup" / "snapshots").iterdir())[0]


def events_in(path: Path) -> int:
    connection = sqlite3.connect(path)
    (number,) = connection.execute("SELECT count(*) FROM events").fetchone()
    connection.close()
    return int(number)


def make_older(home: Path) -> None:
    """The snapshot as the version before this one made it."""
    snapshot = snapshot_of(home)
    downgrade(file_url(snapshot / "database.sqlite"), f"{int(head()) - 1:04d}")
    connection = sqlite3.connect(snapshot / "database.sqlite")
    connection.execute("PRAGMA journal_mode = DELETE").close()
    connection.close()
    manifest = json.loads((snapshot / "manifest.json").read_text())
    manifest["database_sha256"] = digest_of(snapshot / "database.sqlite")
    (snapshot / "manifest.json").write_text(json.dumps(manifest))


# -------------------------------------------------------------------- revocations that an operator gives


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"not a list",
        b"not a list\n",
        b"\x00\xff\n",
        b'{"at": "now"}\n',
        b'{"token_hash": 7}\n',
        f'{{"token_hash": "{HASH}"}}\nrubbish\n{{"token_hash": "{HASH}"}}\n'.encode(),
    ],
)
def test_a_file_that_is_no_list_of_revocations_is_refused_before_anything_is_changed(
    home: Path, content: bytes | None
) -> None:
    given, new = home / "given.jsonl", settings_in(home, "new")
    if content is not None:
        given.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=r"--revocations .*given\.jsonl"):
        restore(new, home / "backup", revocations=given)
    assert list((home / "new").iterdir()) == []


def test_a_folder_for_the_list_of_revocations_is_refused_before_anything_is_changed(home: Path) -> None:
    before = digest_of(home / "data" / "feddisco.db")
    with pytest.raises(InvalidConfiguration, match="cannot be read: Is a directory"):
        restore(settings_in(home), home / "backup", replace=True, revocations=home)
    assert digest_of(home / "data" / "feddisco.db") == before


@pytest.mark.parametrize("cut", ["", '{"token_h'])
def test_the_last_line_of_a_list_of_revocations_may_be_cut(home: Path, cut: str) -> None:
    given = home / "given.jsonl"
    given.write_text(f'{{"token_hash": "{HASH}"}}\n{cut}')
    restore(settings_in(home, "new"), home / "backup", revocations=given)
    assert HASH in (home / "new" / "revocations.jsonl").read_text()


def test_an_empty_list_of_revocations_is_one(home: Path) -> None:
    (home / "given.jsonl").touch()
    assert "Restored" in restore(settings_in(home, "new"), home / "backup", revocations=home / "given.jsonl")


# -------------------------------------------------------------------- snapshots of an earlier version


def test_a_snapshot_of_an_earlier_version_is_verified_kept_and_restored(home: Path) -> None:
    make_older(home)
    before = digest_of(snapshot_of(home) / "database.sqlite")
    assert verify_backup(home / "backup").faults == ()
    assert back_up(settings_in(home), home / "backup", keep=2).endswith("0 of them new")
    assert len(list((home / "backup" / "snapshots").iterdir())) == 2
    assert digest_of(snapshot_of(home) / "database.sqlite") == before, "read through a copy"
    name = snapshot_of(home).name
    restore(settings_in(home, "new"), home / "backup", name=name, later="none")
    assert events_in(home / "new" / "feddisco.db") == events_in(home / "data" / "feddisco.db")


def test_a_file_that_only_an_older_snapshot_names_is_kept_with_it(home: Path) -> None:
    make_older(home)
    with live(f"sqlite:///{home / 'data' / 'feddisco.db'}", home / "data") as at:
        at.admin.post("/runs/demo/stop", json={})
        at.wait_for(lambda: at.run()["status"] == "stopped")
        assert at.admin.delete("/runs/demo").status_code == 200
        names = {path.name for path in (home / "backup" / "blobs").glob("??/*")}
        assert names
        back_up(at.coordinator.settings, home / "backup", keep=2)
        assert {path.name for path in (home / "backup" / "blobs").glob("??/*")} == names
        back_up(at.coordinator.settings, home / "backup", keep=1)
        assert not {path.name for path in (home / "backup" / "blobs").glob("??/*")}


@pytest.mark.parametrize("content", ["{}", "[]", "7", '{"at": "now", "lost": []}', "{"])
def test_a_damaged_manifest_is_a_sentence(home: Path, content: str) -> None:
    (snapshot_of(home) / "manifest.json").write_text(content)
    with pytest.raises(StorageUnavailable, match=r"manifest\.json (is damaged|cannot be read)"):
        verify_backup(home / "backup")
    with pytest.raises(StorageUnavailable, match=r"manifest\.json (is damaged|cannot be read)"):
        restore(settings_in(home, "new"), home / "backup", later="none")


# -------------------------------------------------------------------- what is restored over


@pytest.mark.parametrize("damage", ["garbage", "zeroed pages"])
def test_a_damaged_database_is_replaced_and_kept(home: Path, damage: str) -> None:
    database = home / "data" / "feddisco.db"
    content = database.read_bytes()
    database.write_bytes(
        b"garbage" * 999 if damage == "garbage" else content[:100] + bytes(len(content) - 100)
    )
    damaged = database.read_bytes()
    said = restore(settings_in(home), home / "backup", replace=True, later="none")
    assert f"kept as {database}.replaced." in said
    assert (home / "data" / "feddisco.db.replaced").read_bytes() == damaged
    assert events_in(database)


def test_no_database_that_was_kept_is_overwritten(home: Path) -> None:
    database = home / "data" / "feddisco.db"
    first = events_in(database)
    for number in (1, 2, 3):
        restore(settings_in(home), home / "backup", replace=True, later="none")
        connection = sqlite3.connect(database)
        connection.execute("DELETE FROM events").close()
        connection.commit()
        connection.close()
        kept = "feddisco.db.replaced" if number == 1 else f"feddisco.db.replaced-{number}"
        assert (events_in(home / "data" / kept) == 0) is (number > 1)
    assert events_in(home / "data" / "feddisco.db.replaced") == first


def test_a_database_that_another_program_has_open_is_left_alone(home: Path) -> None:
    database = home / "data" / "feddisco.db"
    other = sqlite3.connect(database)
    other.execute("PRAGMA journal_mode = WAL").close()
    other.execute("SELECT count(*) FROM events").close()
    try:
        with pytest.raises(StorageUnavailable, match="another program has the database"):
            restore(settings_in(home), home / "backup", replace=True, later="none")
    finally:
        other.close()
    assert not (home / "data" / "feddisco.db.replaced").exists()


# -------------------------------------------------------------------- the backup's own folder


@pytest.mark.parametrize("name", ["b#k", "b?k", "b 50%25", "bä;k", "b&mode=rw"])
def test_a_folder_may_have_any_name(home: Path, name: str) -> None:
    folder = home / "elsewhere" / name
    assert "0 of them" not in back_up(settings_in(home), folder)
    assert back_up(settings_in(home), folder, keep=1).endswith("0 of them new")
    assert verify_backup(folder).faults == ()
    restore(settings_in(home, "new"), folder, later="none")
    assert [path.name for path in (home / "elsewhere").iterdir()] == [name]


def test_a_second_backup_at_the_same_time_is_refused_and_disturbs_nothing(home: Path) -> None:
    back_up(settings_in(home), home / "backup")
    partial = home / "backup" / "snapshots" / "20260101T000000000000Z.partial"
    partial.mkdir()
    with (home / "backup" / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("4711")
        held.truncate()
        held.flush()
        with pytest.raises(StorageUnavailable, match=r"another `feddisco backup` \(process 4711\)"):
            back_up(settings_in(home), home / "backup", keep=1)
        assert partial.exists()
    back_up(settings_in(home), home / "backup", keep=1)
    assert not partial.exists(), "what a killed one left"
