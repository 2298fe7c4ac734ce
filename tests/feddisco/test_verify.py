"""feddisco verify finds every kind of damage, in the database, in files, and between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr
from typer.testing import CliRunner

from feddisco.main import app
from feddisco.verify import verify_storage
from server.blobs.disk import MARK
from server.database.migrations import upgrade
from server.database.session import make_engine
from server.database.tables import metadata, participants, rounds, runs
from server.runs.verification import Fault
from server.settings import Settings
from tests.helpers.databases import Postgres
from tests.helpers.http_servers import closed_port
from tests.helpers.live_coordinator import Live, enrolled, file_of, live, sha256

UPDATE = sha256(file_of(10.0))  # of the first client in round 1
BYTES = len(file_of(10.0))
MODEL = sha256(file_of(11.0))  # of round 1


def play(at: Live, keep_updates: int | None = None) -> None:
    """Two completed rounds of two clients."""
    at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"}, keep_updates=keep_updates)
    sites = enrolled(at, (10, 10))
    for number in (1, 2):
        for place, site in enumerate(sites):
            assert site.until("train")["round"] == number
            assert site.upload("demo", number, file_of(10.0 * number + 2 * place)).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder after a run, made once; each test damages a copy."""
    folder = tmp_path_factory.mktemp("played")
    upgrade(f"sqlite:///{folder / 'feddisco.db'}")
    with live(f"sqlite:///{folder / 'feddisco.db'}", folder) as at:
        play(at)
        assert verify_storage(at.coordinator.settings).faults == (), "beside a coordinator"
    return folder


@pytest.fixture
def settings(played: Path, tmp_path: Path) -> Settings:
    shutil.copytree(played, tmp_path / "data")
    return Settings(data_folder=tmp_path / "data")


Damage = Callable[[Settings, sa.Connection], object]


def path_of(settings: Settings, digest: str) -> Path:
    return settings.data_folder / "blobs" / digest[:2] / digest


def change(table: sa.Table, **values: object) -> Damage:
    chosen = table.update().values(**values)
    if table is not runs:
        chosen = chosen.where(table.c.round == 1)
    return lambda settings, connection: connection.execute(chosen)


def forget(settings: Settings, connection: sa.Connection) -> None:
    blobs = metadata.tables["blobs"]
    connection.execute(blobs.delete().where(blobs.c.digest == MODEL))


DAMAGE: dict[str, tuple[Damage, list[Fault]]] = {
    "missing": (
        lambda settings, _: path_of(settings, UPDATE).unlink(),
        [Fault("files", UPDATE, "is missing")],
    ),
    "flipped": (
        lambda settings, _: path_of(settings, MODEL).write_bytes(file_of(11.5)),
        [Fault("files", MODEL, "is damaged: its bytes have another SHA-256")],
    ),
    "another folder": (
        lambda settings, _: (settings.data_folder / "blobs" / MARK).write_text("ab12"),
        [],
    ),
    "bytes": (
        change(participants, bytes=7),
        [
            Fault("ledger", "demo/1", f"says that the update of {client} has 7 bytes, recorded are {BYTES}")
            for client in ("site-0", "site-1")
        ],
    ),
    "no digest": (
        change(participants, update="g" * 64),
        [
            Fault("ledger", "demo/1", f"includes {client}, whose update is named '{'g' * 64}': no SHA-256")
            for client in ("site-0", "site-1")
        ],
    ),
    "no digest of a model": (
        change(rounds, scored_model="g" * 64),
        [Fault("database", "g" * 64, "is needed, and is no SHA-256")],
    ),
    "weights": (
        change(participants, weight=0.4),
        [Fault("ledger", "demo/1", "has weights that sum to 0.8")],
    ),
    "start": (
        change(rounds, start_model=UPDATE),
        [Fault("ledger", "demo/1", "does not start from the result of the round before")],
    ),
    "result": (
        change(rounds, model=UPDATE),
        [Fault("ledger", "demo/2", "does not start from the result of the round before")],
    ),
    "count": (
        change(runs, completed_rounds=3),
        [Fault("ledger", "demo", "has completed 3 rounds, stored are [1, 2]")],
    ),
    "record": (forget, [Fault("files", MODEL, "is needed, but the database has no record of it")]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_found(settings: Settings, kind: str) -> None:
    damage, expected = DAMAGE[kind]
    engine = make_engine(settings.database)
    with engine.begin() as connection:
        damage(settings, connection)
    engine.dispose()
    found = verify_storage(settings).faults
    if kind == "another folder":
        assert [(fault.part, fault.fault.split(",")[0]) for fault in found] == [
            ("files", "belongs to database ab12")
        ]
    else:
        assert list(found) == expected


def test_a_bucket_that_does_not_answer_is_no_fault_of_the_database(settings: Settings) -> None:
    away = settings.model_copy(
        update={
            "blob_store": "s3://bucket/feddisco",
            "s3_endpoint": f"http://127.0.0.1:{closed_port()}",
            "s3_access_key_id": SecretStr("key"),
            "s3_secret_access_key": SecretStr("secret"),
        }
    )
    (fault,) = verify_storage(away).faults
    assert fault.part == "files"
    assert "s3://bucket/feddisco does not answer" in fault.fault


@pytest.mark.parametrize(("column", "value"), [("created_at", "2026-1"), ("manifest", "[{")])
def test_a_value_that_cannot_be_read_is_a_finding(settings: Settings, column: str, value: str) -> None:
    """SQLite takes anything for a date, and for JSON."""
    engine = make_engine(settings.database)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE runs SET {column} = :value"), {"value": value})
    engine.dispose()
    found = str(verify_storage(settings).faults[0])
    assert found.startswith("database: table runs has a value that cannot be read: ")


def test_a_database_with_a_damaged_page_is_a_finding(settings: Settings) -> None:
    path = settings.data_folder / "feddisco.db"
    content = bytearray(path.read_bytes())
    content[-4096:-3900] = bytes(range(196))
    path.write_bytes(content)
    assert {fault.part for fault in verify_storage(settings).faults} == {"database"}


def test_on_postgresql_every_table_is_read(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.fresh()
    try:
        with live(url, tmp_path / "data") as at:
            play(at)
        settings = at.coordinator.settings
        assert verify_storage(settings).faults == ()
        path_of(settings, UPDATE).unlink()
        engine = make_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE join_tokens RENAME TO elsewhere")
        engine.dispose()
        table, file = verify_storage(settings).faults
        assert table.fault.startswith("table join_tokens: ")
        assert file == Fault("files", UPDATE, "is missing")
    finally:
        postgres.drop(url)


def test_updates_that_are_no_longer_kept_are_not_missed(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        play(at, keep_updates=1)
        path_of(at.coordinator.settings, UPDATE).unlink()
        assert verify_storage(at.coordinator.settings).faults == ()


def test_the_command_has_exit_codes_and_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.sqlite'}"
    run = CliRunner()
    arguments = ["verify", "--data-folder", str(tmp_path / "data"), "--database-url", url]
    absent = run.invoke(app, arguments)
    assert absent.exception is not None
    assert "there is no database" in str(absent.exception)
    assert not (tmp_path / "own.sqlite").exists()
    assert not (tmp_path / "data").exists()
    upgrade(url)
    with live(url, tmp_path / "data") as at:
        play(at)
    well = run.invoke(app, arguments)
    assert (well.exit_code, well.output) == (
        0, f"1 run, 2 completed rounds, 7 files, {7 * BYTES} bytes: all as it was written\n"
    )  # fmt: skip
    path_of(at.coordinator.settings, UPDATE).unlink()
    ill = run.invoke(app, arguments)
    assert (ill.exit_code, ill.output.splitlines()[0]) == (1, f"files: {UPDATE} is missing")
    told = json.loads(run.invoke(app, [*arguments, "--json"]).output)
    assert (told["ok"], told["faults"]) == (
        False, [{"part": "files", "subject": UPDATE, "fault": "is missing"}]
    )  # fmt: skip
