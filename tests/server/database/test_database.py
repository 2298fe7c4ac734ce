"""Engines and transactions: what SQLite needs to keep its promises, and errors in words."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from server.database import session
from server.database.session import Reading, Writing, make_engine, parse_url, reading, writing
from server.database.store import Store
from server.database.tables import blobs, clients, evaluations, events
from shared.problems import InvalidConfiguration, StorageUnavailable
from tests.helpers.databases import Postgres

NOW = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def test_read_then_write_loses_no_update(engine: sa.Engine) -> None:
    """8 threads x 25 increments, read and written in one transaction guarded by the old value."""
    with writing(engine) as connection:
        connection.execute(blobs.insert(), {"digest": "0" * 64, "bytes": 0, "created_at": NOW})

    def increment() -> None:
        done = 0
        while done < 25:
            with writing(engine) as connection:
                value = connection.select(sa.select(blobs.c.bytes)).scalar_one()
                statement = blobs.update().where(blobs.c.bytes == value).values(bytes=value + 1)
                done += connection.execute(statement).rowcount

    threads = [threading.Thread(target=increment) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reading(engine) as reader:
        assert reader.select(sa.select(blobs.c.bytes)).scalar_one() == 200


def test_a_reader_does_not_wait_for_a_writer_and_sees_one_snapshot(engine: sa.Engine) -> None:
    count = sa.select(sa.func.count()).select_from(blobs)
    with reading(engine) as reader:
        assert reader.select(count).scalar_one() == 0
        with writing(engine) as writer:
            writer.execute(blobs.insert(), {"digest": "1" * 64, "bytes": 1, "created_at": NOW})
            assert reader.select(count).scalar_one() == 0
        assert reader.select(count).scalar_one() == 0
    with reading(engine) as reader:
        assert reader.select(count).scalar_one() == 1


def test_every_thread_may_read_at_once(engine: sa.Engine) -> None:
    with contextlib.ExitStack() as opened:
        readers = [opened.enter_context(reading(engine)) for _ in range(60)]
        assert [reader.select(sa.select(sa.literal(1))).scalar_one() for reader in readers] == [1] * 60


def test_a_block_that_raises_is_rolled_back(engine: sa.Engine) -> None:
    def fail() -> None:
        with writing(engine) as connection:
            connection.execute(blobs.insert(), {"digest": "2" * 64, "bytes": 1, "created_at": NOW})
            raise RuntimeError("after the insert")

    with pytest.raises(RuntimeError, match="after the insert"):
        fail()
    with reading(engine) as connection:
        assert connection.select(sa.select(blobs)).all() == []


def test_a_reading_connection_has_no_way_to_write(engine: sa.Engine) -> None:
    with reading(engine) as connection:
        assert not isinstance(connection, Writing)
        assert not hasattr(connection, "execute")


def pragma(connection: Reading, name: str) -> object:
    # a pragma as a table-valued function, so that it can be asked like a table
    function = getattr(sa.func, f"pragma_{name}")().table_valued(sa.column(name))
    return connection.select(sa.select(function.c[name])).scalar_one()


def test_sqlite_settings_and_what_waits_for_the_disk(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite'}"
    full, normal = 2, 1
    engine = make_engine(url)
    with writing(engine) as connection:
        assert pragma(connection, "synchronous") == full
        assert pragma(connection, "journal_mode") == "wal"
        assert pragma(connection, "foreign_keys") == 1
    with writing(engine, durable=False) as connection:
        assert pragma(connection, "synchronous") == normal
    with writing(engine) as connection:
        assert pragma(connection, "synchronous") == full
    engine.dispose()
    engine = make_engine(url, synchronous="NORMAL")
    with writing(engine) as connection:
        assert pragma(connection, "synchronous") == normal
    engine.dispose()


def test_postgresql_commits_wait_for_the_disk_unless_told_otherwise(postgres: Postgres) -> None:
    url = postgres.fresh()
    engine = make_engine(url)
    setting = sa.select(sa.func.current_setting("synchronous_commit"))
    with writing(engine) as connection:
        assert connection.select(setting).scalar_one() == "on"
    with writing(engine, durable=False) as connection:
        assert connection.select(setting).scalar_one() == "off"
    with writing(engine) as connection:
        assert connection.select(setting).scalar_one() == "on"
    engine.dispose()
    postgres.recycle(url)


def test_times_come_back_as_aware_utc_and_naive_ones_are_refused(engine: sa.Engine) -> None:
    karachi = dt.datetime(2026, 1, 2, 17, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    with writing(engine) as connection:
        connection.execute(blobs.insert(), {"digest": "3" * 64, "bytes": 1, "created_at": karachi})
    with reading(engine) as connection:
        found = connection.select(sa.select(blobs.c.created_at)).scalar_one()
    assert found == NOW
    assert found.tzinfo == dt.UTC
    row = {"digest": "4" * 64, "bytes": 1, "created_at": NOW.replace(tzinfo=None)}
    with pytest.raises(sa.exc.StatementError, match="naive datetime"), writing(engine) as connection:
        connection.execute(blobs.insert(), row)


def test_foreign_keys_hold(engine: sa.Engine) -> None:
    row = {"run": "none", "round": 0, "client": "none", "loss": 0.0, "examples": 1, "at": NOW}
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(evaluations.insert(), row | {"per_category": {}, "extra": {}})


def test_json_takes_no_nan_on_either_database(engine: sa.Engine) -> None:
    row = {"at": NOW, "kind": "x", "actor": "admin", "detail": {"loss": float("nan")}}
    refused = (sa.exc.StatementError, ValueError)  # SQLAlchemy's for SQLite; psycopg dumps by itself
    with pytest.raises(refused, match="JSON compliant"), writing(engine) as connection:
        connection.execute(events.insert(), row)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    engine = make_engine(f"postgresql://someone:hunter2@127.0.0.1:{port}/feddisco")
    with pytest.raises(StorageUnavailable) as caught, reading(engine):
        pass
    assert f"postgresql://someone:***@127.0.0.1:{port}/feddisco" in caught.value.detail
    assert "hunter2" not in str(caught.value)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_a_database_whose_host_vanishes_is_given_up(postgres: Postgres) -> None:
    """No packet says so: the system's own patience is a quarter of an hour, and two hours for who listens."""
    url = postgres.empty()
    mine = make_engine(f"{url}?tcp_user_timeout=5000")
    try:
        for engine, patience in ((make_engine(url), 60_000), (mine, 5000)):
            with engine.connect() as connection:
                number = os.dup(connection.connection.dbapi_connection.fileno())  # type: ignore[union-attr]
                with socket.socket(fileno=number) as found:
                    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == patience
                    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            engine.dispose()
    finally:
        postgres.drop(url)


@pytest.mark.parametrize(
    ("statement", "said", "advice"),
    [
        ("CREATE TABLE t (x int)", "in a read-only transaction", "Connect to the primary"),
        (  # what a standby says to a connection that has read before
            "DO $$ BEGIN RAISE 'cannot set transaction read-write mode during recovery' "
            "USING ERRCODE = '0A000'; END $$",
            "during recovery",
            "connect to the primary",
        ),
        ("DO $$ BEGIN RAISE 'invalid page in block 3' USING ERRCODE = 'XX001'; END $$", "page", "restore a"),
    ],
)
def test_what_postgresql_refuses_for_its_own_state_is_no_mistake_of_ours(
    statement: str, said: str, advice: str, postgres: Postgres
) -> None:
    """So clients wait, as for a full disk, in place of giving their round up for an unexpected fault."""
    url = postgres.empty()
    engine = make_engine(f"{url}?options=-c%20default_transaction_read_only%3Don")
    try:
        with pytest.raises(StorageUnavailable, match=said) as caught, writing(engine) as connection:
            connection._connection.exec_driver_sql(statement)
        assert advice in caught.value.hint
        with pytest.raises(sa.exc.ProgrammingError), writing(engine) as connection:
            connection._connection.exec_driver_sql("SELECT nothing")
    finally:
        engine.dispose()
        postgres.drop(url)


def test_an_unwritable_sqlite_path_is_named(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'missing' / 'a.sqlite'}")
    with (
        pytest.raises(StorageUnavailable, match=r"missing/a\.sqlite does not answer: unable to open"),
        writing(engine) as connection,
    ):
        connection.select(sa.select(clients)).all()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at" * 100)
    engine = make_engine(f"sqlite:///{path}")
    with (
        pytest.raises(StorageUnavailable, match=r"notes\.txt does not answer: file is not a database"),
        reading(engine) as connection,
    ):
        connection.select(sa.select(clients)).all()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://root:hunter2@db/x", "no database driver for mysql://"),
        ("nonsense hunter2", "cannot be read"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_urls_that_cannot_be_used(url: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)
    assert "sqlite:///" in caught.value.hint


def test_a_password_with_an_at_sign_is_not_taken_for_a_host() -> None:
    with pytest.raises(InvalidConfiguration, match="more than one @") as caught:
        parse_url("postgresql://fd:secret@hunter2@127.0.0.1:5432/fd")
    assert "hunter2" not in str(caught.value)
    assert "@ as %40" in caught.value.hint
    assert parse_url("postgresql://fd:secret%40hunter2@127.0.0.1/fd").password == "secret@hunter2"


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///a.sqlite", "sqlite+pysqlite"),
        ("postgresql://db/x", "postgresql+psycopg"),
        ("postgres://db/x", "postgresql+psycopg"),
        ("postgresql+psycopg://db/x", "postgresql+psycopg"),
    ],
)
def test_urls_that_can(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


def test_statements_stay_prepared_after_a_reading(postgres: Postgres) -> None:
    """The driver prepares what is asked for the sixth time, and forgets it at a ROLLBACK."""
    url = postgres.fresh()
    engine = make_engine(url)
    store = Store(engine)
    for _ in range(8):
        store.clients()
    with reading(engine) as connection:
        count = sa.select(sa.func.count()).select_from(sa.table("pg_prepared_statements"))
        assert connection.select(count).scalar_one() > 0
    engine.dispose()
    postgres.recycle(url)


def test_a_connection_that_broke_while_it_lay_idle_costs_no_error(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.fresh()
    engine = make_engine(url)
    store = Store(engine)
    store.clients()
    monkeypatch.setattr(session, "CHECKED_SECONDS", 0.0)
    for _ in range(2):
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert store.clients() == []
        assert store.latest_event_id() == 0
    engine.dispose()
    postgres.recycle(url)
