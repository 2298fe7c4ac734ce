"""The tables come to be by the migrations, on both databases, and go again."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from server.database.migrations import check_current, current, downgrade, head, is_current, migrating, upgrade
from server.database.session import make_engine
from server.database.store import Store
from server.database.tables import (
    assistances,
    blobs,
    clients,
    deletions,
    enrolments,
    evaluations,
    events,
    installation,
    metadata,
    participants,
    rounds,
    runs,
    shadows,
    travelling,
)
from server.lifecycle.events import TimePassed
from shared.config import RunConfig
from shared.problems import SchemaOutdated, StorageUnavailable
from shared.schemas import (
    EnrolmentStatus,
    ParticipantStatus,
    Role,
    RoundStatus,
    RunStatus,
    Train,
    UserRequest,
    UserRole,
)

BEFORE_PEOPLE, PEOPLE = "0012", "0013"
ROOT = Path(__file__).resolve().parents[3]


def test_migrations_make_exactly_the_tables_of_the_code(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []


def test_up_down_up(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    assert current(engine) is None
    assert not is_current(engine)
    upgrade(empty_database_url)
    assert current(engine) == head()
    upgrade(empty_database_url)  # again: nothing happens
    downgrade(empty_database_url)
    assert current(engine) is None
    assert sa.inspect(engine).get_table_names() == ["alembic_version"]
    upgrade(empty_database_url)
    assert is_current(engine)
    assert set(sa.inspect(engine).get_table_names()) == {"alembic_version", *metadata.tables}
    engine.dispose()


def test_an_old_schema_is_refused_with_both_revisions(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    with pytest.raises(SchemaOutdated, match=f"is at nothing, this program needs {head()}") as caught:
        check_current(engine)
    assert "feddisco server migrate" in caught.value.hint
    upgrade(empty_database_url)
    check_current(engine)
    engine.dispose()


def test_a_schema_of_a_newer_program_is_refused(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaOutdated, match="'9999'") as caught:
        upgrade(engine.url)
    assert "newer version" in caught.value.hint


@pytest.mark.long
def test_processes_that_migrate_at_the_same_time_wait_for_one_another(empty_database_url: str) -> None:
    program = "import sys; from server.database.migrations import upgrade; upgrade(sys.argv[1])"
    command = [sys.executable, "-W", "error", "-c", program, empty_database_url]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    engine = make_engine(empty_database_url)
    assert is_current(engine)
    engine.dispose()


def test_a_failing_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    def fail() -> None:
        with migrating(empty_database_url) as connection:
            connection.exec_driver_sql("CREATE TABLE half (id INTEGER)")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail()
    engine = make_engine(empty_database_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_batch_mode_does_not_empty_child_tables(tmp_path: Path) -> None:
    """A parent dropped and made anew, as batch mode does: with foreign keys on, its children would go too."""
    url = f"sqlite:///{tmp_path / 'family.sqlite'}"
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE child (id INTEGER REFERENCES parent (id) ON DELETE CASCADE NOT NULL)"
        )
        connection.exec_driver_sql("INSERT INTO parent VALUES (1)")
        connection.exec_driver_sql("INSERT INTO child VALUES (1)")
    with migrating(url) as connection:
        connection.exec_driver_sql("CREATE TABLE fresh (id INTEGER PRIMARY KEY, more TEXT)")
        connection.exec_driver_sql("INSERT INTO fresh (id) SELECT id FROM parent")
        connection.exec_driver_sql("DROP TABLE parent")
        connection.exec_driver_sql("ALTER TABLE fresh RENAME TO parent")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT id FROM child").all() == [(1,)]
    with (
        pytest.raises(StorageUnavailable, match="1 dangling references in child"),
        migrating(url) as connection,
    ):
        connection.exec_driver_sql("DELETE FROM parent")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT id FROM parent").all() == [(1,)]
    engine.dispose()


def test_alembic_is_the_library_and_not_our_folder() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
    command = [sys.executable, "-m", "alembic", "heads"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [head(), "(head)"], done.stderr


def test_a_database_of_schema_0003_gets_an_id_and_knows_when_it_was_last_used(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url, "0003")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, 12, 0, 0, 123456, tzinfo=dt.UTC)
    with engine.begin() as connection:
        rows = [
            {"at": at - dt.timedelta(days=days), "kind": "run_paused", "actor": "admin", "detail": {}}
            for days in (1, 0)
        ]
        connection.execute(events.insert(), rows)
    upgrade(empty_database_url, "0004")
    with engine.connect() as connection:
        (row,) = connection.execute(sa.select(installation.c.one, installation.c.id, installation.c.alive_at))
    assert (row.one, len(row.id), row.alive_at) == (1, 32, at)
    store = Store(engine)
    assert store.database_id(at) == row.id
    told: list[dt.datetime | None] = []
    for now in (at + dt.timedelta(hours=1), at):
        store.note_alive(now, lambda before: told.append(before) or dt.timedelta(0))  # type: ignore[func-returns-value]
    assert told == [at, at + dt.timedelta(hours=1)]
    downgrade(empty_database_url, "0003")
    assert not sa.inspect(engine).has_table("installation")
    engine.dispose()


def test_a_blob_of_schema_0004_has_no_fault_and_was_never_checked(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0004")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        connection.execute(blobs.insert().values(digest="0" * 64, bytes=7, created_at=at))
    upgrade(empty_database_url)
    store = Store(engine)
    assert (store.faulty_blobs(), store.counts()["blobs"]) == ([], {"number": 1, "bytes": 7, "faulty": 0})
    assert store.note_blob_fault("0" * 64, "is missing", at) == []
    assert store.faulty_blobs() == ["0" * 64]
    downgrade(empty_database_url, "0004")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM blobs"))
        assert (older.bytes, len(older)) == (7, 3)
    engine.dispose()


def test_people_and_audit_log_begin_after_the_events_that_are_there(empty_database_url: str) -> None:
    upgrade(empty_database_url, BEFORE_PEOPLE)
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        old = {"at": at, "kind": "run_paused", "actor": "admin", "detail": {}}
        connection.execute(events.insert(), [old, old])
    upgrade(empty_database_url, PEOPLE)
    store = Store(engine)
    (begun,) = map(json.loads, store.audit_entries(0, 10))
    assert (begun["action"], begun["detail"], begun["number"]) == ("audit_begun", {"after_event": 2}, 1)
    assert store.find_audit_faults() == [], "what was done before has no entry"
    store.add_join_token("0" * 64, 1, None, at, actor="admin")
    request = UserRequest(name="maria", role=UserRole.OPERATOR, runs=("demo",))
    store.add_user(request, "1" * 64, "admin", at)
    assert store.find_audit_faults() == []
    assert [json.loads(entry)["action"] for entry in store.audit_entries(1, 10)] == [
        "join_token_added",
        "user_added",
    ]
    (maria,) = store.users()
    assert (maria.role, maria.runs, maria.created_at) == (UserRole.OPERATOR, ("demo",), at)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.text("UPDATE users SET role = 'root'"))
    downgrade(empty_database_url, BEFORE_PEOPLE)
    assert not {"users", "sessions", "audit_log"} & set(sa.inspect(engine).get_table_names())
    engine.dispose()


def test_a_round_of_schema_0006_remembers_nothing_and_is_gone_on_with(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0006")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    key = {"run": "demo", "round": 1, "attempt": 1}
    with engine.begin() as connection:
        connection.execute(
            clients.insert().values(client="north", token_hash="0" * 64, version="0.1", registered_at=at)
        )
        connection.execute(
            runs.insert().values(
                run="demo", version=1, status=RunStatus.RUNNING, config={}, classes=["a"], manifest=[],
                completed_rounds=1, initial_model="0" * 64, created_at=at,
            )
        )  # fmt: skip
        connection.execute(
            rounds.insert().values(
                **key, status=RoundStatus.COMPLETED, opened_at=at, deadline_at=at, trainers=[[0, 40, "0.5"]],
                start_model="0" * 64, model="1" * 64, scored_model="1" * 64,
            )
        )  # fmt: skip
        connection.execute(
            participants.insert().values(
                **key, client="north", index=0, status=ParticipantStatus.AGGREGATED, examples=40,
                relative_size=1.0, loss=0.5, weight=1.0,
            )
        )  # fmt: skip
    upgrade(empty_database_url)
    with engine.begin() as connection:
        new = sa.select(rounds.c.start_memory, rounds.c.memory, rounds.c.adjustment)
        assert connection.execute(new).all() == [(None, None, None)]
        own = ("start_loss", "end_loss", "details", "loss")
        found = sa.select(*(participants.c[name] for name in own))
        assert connection.execute(found).all() == [(None, None, None, 0.5)]
        memory = {"angle": {"0": 0.1 + 0.2}}
        connection.execute(rounds.update().values(memory=memory))
        assert connection.scalar(sa.select(rounds.c.memory)) == memory, "to the last bit"
    downgrade(empty_database_url, "0006")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM participants"))
        assert (older.client, older.weight, "start_loss" in older._fields) == ("north", 1.0, False)
        (older,) = connection.execute(sa.text("SELECT * FROM rounds"))
        assert "memory" not in older._fields
    engine.dispose()


def test_a_run_of_schema_0013_has_updates_in_clear_and_clients_without_keys(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0013")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        connection.execute(
            clients.insert().values(client="north", token_hash="0" * 64, version="0.1", registered_at=at)
        )
        config = RunConfig(name="demo").model_dump(mode="json")
        connection.execute(
            runs.insert().values(
                run="demo", version=1, status=RunStatus.RUNNING, config=config, classes=["a"], manifest=[],
                completed_rounds=0, initial_model="0" * 64, created_at=at,
            )
        )  # fmt: skip
        connection.execute(
            enrolments.insert().values(
                run="demo", client="north", role=Role.TRAINER, status=EnrolmentStatus.READY, index=0,
                examples=40, device="cpu", enrolled_at=at,
            )
        )  # fmt: skip
        key = {"run": "demo", "round": 1, "attempt": 1}
        connection.execute(
            rounds.insert().values(
                **key, status=RoundStatus.COLLECTING, opened_at=at, deadline_at=at, trainers=[[0, 40, None]],
                start_model="0" * 64,
            )
        )  # fmt: skip
        connection.execute(
            participants.insert().values(
                **key,
                client="north",
                index=0,
                status=ParticipantStatus.INVITED,
                examples=40,
                relative_size=1.0,
            )
        )  # fmt: skip
    upgrade(empty_database_url)
    store = Store(engine)
    state = store.run_state("demo")
    assert state.round is not None
    assert (state.round.secure, state.totals, state.enrolments[0].identity) == (None, None, None)
    assert store.identity_of("north") is None
    asked = store.work_for("north")
    assert isinstance(asked, Train)
    assert asked.inbox is None
    store.pin_identity("south", "1" * 64, "admin", at)
    downgrade(empty_database_url, "0013")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM rounds"))
        assert (older.round, "secure" in older._fields) == (1, False)
    assert "identity_pins" not in sa.inspect(engine).get_table_names()
    engine.dispose()


def test_an_enrolment_of_schema_0001_has_not_said_what_is_left_out_nor_how_it_disclosed(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url, "0001")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        connection.execute(
            clients.insert().values(client="north", token_hash="0" * 64, version="0.1", registered_at=at)
        )
        connection.execute(
            runs.insert().values(
                run="demo", version=1, status=RunStatus.ENROLLING, config={}, classes=["a"], manifest=[],
                completed_rounds=0, initial_model="0" * 64, created_at=at,
            )
        )  # fmt: skip
        connection.execute(
            enrolments.insert().values(
                run="demo", client="north", role=Role.TRAINER, status=EnrolmentStatus.READY, index=3,
                examples=40, device="cpu", discrepancy=0.5, discrepancy_metric="kl", enrolled_at=at,
            )
        )  # fmt: skip
    upgrade(empty_database_url)
    with engine.begin() as connection:
        (row,) = connection.execute(sa.select(enrolments))
        assert (row.left_out, row.examples, row.discrepancy, row.enrolled_at) == (None, 40, 0.5, at)
        assert (row.grade, row.epsilon) == (None, None)
        connection.execute(enrolments.update().values(left_out={"hidden": 2}, grade="noised", epsilon=0.5))
        assert connection.scalar(sa.select(enrolments.c.left_out)) == {"hidden": 2}
    downgrade(empty_database_url, "0002")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM enrolments"))
        assert (older.discrepancy, "grade" in older._fields, "epsilon" in older._fields) == (
            0.5,
            False,
            False,
        )
    downgrade(empty_database_url, "0001")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM enrolments"))
        assert (older.client, older.examples) == ("north", 40)
        assert "left_out" not in older._fields
    engine.dispose()


def test_enrolments_of_schema_0005_keep_all_they_have_and_new_statuses_are_declined_in_the_older_one(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url, "0005")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    row = {"run": "demo", "examples": 40, "device": "cpu", "enrolled_at": at, "role": Role.TRAINER}
    with engine.begin() as connection:
        for name in ("north", "south", "west"):
            values = {"client": name, "token_hash": name * 4, "version": "0.1", "registered_at": at}
            connection.execute(clients.insert().values(**values))
        connection.execute(
            runs.insert().values(
                run="demo", version=1, status=RunStatus.ENROLLING, config={}, classes=["a"], manifest=[],
                completed_rounds=0, initial_model="0" * 64, created_at=at,
            )
        )  # fmt: skip
        more = {"client": "north", "status": EnrolmentStatus.READY, "index": 3, "left_out": {"hidden": 1}}
        connection.execute(enrolments.insert().values(**row, **more))
    upgrade(empty_database_url)
    with engine.begin() as connection:
        (kept,) = connection.execute(sa.select(enrolments))
        assert (kept.examples, kept.left_out, kept.enrolled_at) == (40, {"hidden": 1}, at)
        assert kept.approved_examples is None
        assert connection.execute(sa.select(clients.c.role, clients.c.group)).all() == [(None, None)] * 3
        for client, status in (
            ("south", EnrolmentStatus.REFUSED),
            ("west", EnrolmentStatus.AWAITING_APPROVAL),
        ):
            connection.execute(enrolments.insert().values(**row, client=client, status=status))
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.text("UPDATE enrolments SET status = 'unheard-of'"))
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:  # as before
        connection.execute(sa.text("UPDATE enrolments SET client = 'nobody' WHERE client = 'north'"))
    inspector = sa.inspect(engine)
    assert [index["name"] for index in inspector.get_indexes("enrolments")].count("ix_enrolments_client") == 1
    downgrade(empty_database_url, "0005")
    with engine.begin() as connection:
        older = connection.execute(sa.text("SELECT client, status FROM enrolments ORDER BY client"))
        assert older.all() == [("north", "ready"), ("south", "declined"), ("west", "declined")]
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.text("UPDATE enrolments SET status = 'refused'"))
    engine.dispose()


def test_participants_of_schema_0007_have_told_nothing_of_their_updates(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0007")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        values = {"client": "north", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
        connection.execute(clients.insert().values(**values))
        connection.execute(
            runs.insert().values(
                run="demo", version=1, status=RunStatus.RUNNING, config={}, classes=["a"], manifest=[],
                completed_rounds=0, initial_model="0" * 64, created_at=at,
            )
        )  # fmt: skip
        key = {"run": "demo", "round": 1, "attempt": 1}
        connection.execute(
            rounds.insert().values(
                **key, status=RoundStatus.COMPLETED, opened_at=at, deadline_at=at, trainers=[],
                start_model="0" * 64,
            )
        )  # fmt: skip
        connection.execute(
            participants.insert().values(
                **key, client="north", index=0, status=ParticipantStatus.AGGREGATED, examples=40,
                relative_size=1.0, weight=0.5,
            )
        )  # fmt: skip
    upgrade(empty_database_url)
    with engine.begin() as connection:
        (row,) = connection.execute(sa.select(participants))
        assert (row.weight, row.norm, row.largest_entry, row.cosine, row.share) == (0.5, *[None] * 4)
        connection.execute(participants.update().values(norm=float("inf"), cosine=-0.5))
    downgrade(empty_database_url, "0007")
    with engine.connect() as connection:
        (older,) = connection.execute(sa.text("SELECT * FROM participants"))
        assert (older.weight, "norm" in older._fields) == (0.5, False)
    engine.dispose()


def insert_run(connection: sa.Connection, run: str, status: str) -> None:
    """A run of two completed rounds, by the columns that schema 0008 and all later ones have."""
    connection.execute(
        sa.text(
            "INSERT INTO runs (run, version, status, config, classes, manifest, completed_rounds, "
            "initial_model, created_at) VALUES (:run, 1, :status, '{}', '[]', '[]', 2, :zeros, :at)"
        ),
        {"run": run, "status": status, "zeros": "0" * 64, "at": dt.datetime(2026, 11, 28, tzinfo=dt.UTC)},
    )


def test_runs_of_schema_0008_know_their_highest_attempt_and_keep_their_rounds(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url, "0008")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        for name in ("demo", "new"):
            insert_run(connection, name, "running")
        values = {"client": "north", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
        connection.execute(clients.insert().values(**values))
        common = {"run": "demo", "opened_at": at, "deadline_at": at, "trainers": [], "start_model": "0" * 64}
        for number, attempt, status in ((1, 3, RoundStatus.COMPLETED), (2, 1, RoundStatus.COMPLETED)):
            place = {"round": number, "attempt": attempt}
            connection.execute(rounds.insert().values(**common, **place, status=status))
            member = {"client": "north", "index": 0, "examples": 40, "relative_size": 1.0}
            connection.execute(
                participants.insert().values(
                    run="demo", **place, **member, status=ParticipantStatus.AGGREGATED
                )
            )
    upgrade(empty_database_url, "0009")
    with engine.begin() as connection:
        found = connection.execute(sa.select(runs.c.run, runs.c.highest_attempt, runs.c.rewound_rounds))
        assert sorted(found.all()) == [("demo", 3, 0), ("new", 0, 0)]
        assert connection.scalar(sa.select(sa.func.count()).select_from(participants)) == 2
        connection.execute(rounds.update().where(rounds.c.round == 2).values(status=RoundStatus.REWOUND))
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.text("UPDATE rounds SET status = 'unheard-of'"))
    with (
        pytest.raises(sa.exc.IntegrityError),
        engine.begin() as connection,
    ):  # participants still need a round
        connection.execute(sa.text("UPDATE participants SET round = 7"))
    names = {index["name"] for index in sa.inspect(engine).get_indexes("rounds")}
    assert {"ix_rounds_status", "ix_rounds_model", "ix_rounds_broadcast", "ix_rounds_scored_model"} <= names
    downgrade(empty_database_url, "0008")
    with engine.connect() as connection:
        older = connection.execute(sa.text("SELECT round, status FROM rounds ORDER BY round"))
        assert older.all() == [(1, "completed"), (2, "abandoned")]
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM participants")) == 2
    engine.dispose()


def test_runs_of_schema_0009_are_not_put_away_and_none_was_deleted(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0009")
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        insert_run(connection, "demo", "stopped")
    upgrade(empty_database_url, "0010")
    with engine.begin() as connection:
        assert connection.execute(sa.select(runs.c.run, runs.c.archived_at)).all() == [("demo", None)]
        assert connection.scalar(sa.select(sa.func.count()).select_from(deletions)) == 0
        at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
        connection.execute(runs.update().values(archived_at=at))
        gone = {
            "run": "gone",
            "created_at": at,
            "deleted_at": at,
            "actor": "admin",
            "reason": "",
            "record": {},
        }
        connection.execute(deletions.insert().values(**gone))
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(deletions.insert().values(**gone))
    downgrade(empty_database_url, "0009")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT run, completed_rounds FROM runs")).all() == [("demo", 2)]
    assert not sa.inspect(engine).has_table("deletions")
    engine.dispose()


def test_runs_of_schema_0010_were_never_changed(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0010")
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        insert_run(connection, "demo", "running")
    upgrade(empty_database_url, "0011")
    with engine.begin() as connection:
        assert connection.execute(sa.select(runs.c.run, runs.c.revision)).all() == [("demo", 0)]
        connection.execute(runs.update().values(revision=3))
    downgrade(empty_database_url, "0010")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT run, version FROM runs")).all() == [("demo", 1)]
    engine.dispose()


def insert_evaluation(connection: sa.Connection) -> None:
    """A run whose first model a judge has scored, as of schema 0015."""
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    insert_run(connection, "demo", "running")
    values = {"client": "judge", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
    connection.execute(clients.insert().values(**values))
    score = {"run": "demo", "round": 0, "client": "judge", "examples": 5, "per_category": {}, "extra": {}}
    connection.execute(evaluations.insert().values(**score, at=at))


def test_rounds_of_before_schema_0016_have_no_shadows(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0016")
    downgrade(empty_database_url, "0015")
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        insert_evaluation(connection)
    upgrade(empty_database_url, "0016")
    with engine.begin() as connection:
        found = connection.execute(sa.select(evaluations.c.client, evaluations.c.shadows)).all()
        assert found == [("judge", None)]
        assert connection.scalar(sa.select(sa.func.count()).select_from(shadows)) == 0
        connection.execute(evaluations.update().values(shadows={"sizes": {"loss": 1.0}}))
    downgrade(empty_database_url, "0015")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT client, examples FROM evaluations")).all() == [("judge", 5)]
    assert not sa.inspect(engine).has_table("shadows")
    engine.dispose()


def test_evaluations_of_schema_0016_have_no_confusion_matrix(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0016")
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        insert_evaluation(connection)
    upgrade(empty_database_url, "0017")
    with engine.begin() as connection:
        assert connection.execute(sa.select(evaluations.c.round, evaluations.c.confusion)).all() == [
            (0, None)
        ]
        connection.execute(evaluations.update().values(confusion=[[1.0, 0.0], [0.5, 0.5]]))
    downgrade(empty_database_url, "0016")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT client, examples FROM evaluations")).all() == [("judge", 5)]
    engine.dispose()


def test_participants_of_schema_0017_have_told_no_epsilon(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0017")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    key = {"run": "demo", "round": 1, "attempt": 1}
    with engine.begin() as connection:
        insert_run(connection, "demo", "running")
        values = {"client": "north", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
        connection.execute(clients.insert().values(**values))
        opened = {"opened_at": at, "deadline_at": at, "trainers": [], "start_model": "0" * 64}
        connection.execute(rounds.insert().values(**key, **opened, status=RoundStatus.COLLECTING))
        row = {"client": "north", "index": 0, "status": ParticipantStatus.UPLOADED, "loss": 0.5}
        connection.execute(participants.insert().values(**key, **row, examples=5, relative_size=1.0))
    upgrade(empty_database_url, "0018")
    with engine.begin() as connection:
        found = connection.execute(sa.select(participants.c.loss, participants.c.epsilon)).all()
        assert found == [(0.5, None)]
        connection.execute(participants.update().values(epsilon=1.5))
    downgrade(empty_database_url, "0017")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT client, loss FROM participants")).all() == [("north", 0.5)]
    engine.dispose()


def test_rounds_of_before_schema_0019_have_no_travelling_models(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0018")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    key = {"run": "demo", "round": 1, "attempt": 1}
    with engine.begin() as connection:
        insert_run(connection, "demo", "running")
        values = {"client": "north", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
        connection.execute(clients.insert().values(**values))
        opened = {"opened_at": at, "deadline_at": at, "trainers": [], "start_model": "0" * 64}
        connection.execute(rounds.insert().values(**key, **opened, status=RoundStatus.COLLECTING))
        row = {"client": "north", "index": 0, "status": ParticipantStatus.UPLOADED, "loss": 0.5}
        connection.execute(participants.insert().values(**key, **row, examples=5, relative_size=1.0))
    upgrade(empty_database_url, "0019")
    with engine.begin() as connection:
        columns = (participants.c.loss, participants.c.start_model, participants.c.start_number)
        found = connection.execute(sa.select(*columns, participants.c.started_from)).all()
        assert found == [(0.5, None, None, None)]
        connection.execute(participants.update().values(start_model="1" * 64, start_number=0, started_from=0))
        model = {"number": 0, "model": "1" * 64, "client": 0, "earned": 5.0}
        connection.execute(travelling.insert().values(**key, **model))
        connection.execute(rounds.delete())
        assert connection.execute(sa.select(travelling)).all() == [], "they go with their round"
    downgrade(empty_database_url, "0018")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT run FROM runs")).all() == [("demo",)]
    engine.dispose()


def test_rounds_of_schema_0019_have_asked_no_assistant(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0019")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    key = {"run": "demo", "round": 1, "attempt": 1}
    with engine.begin() as connection:
        insert_run(connection, "demo", "running")
        opened = {"opened_at": at, "deadline_at": at, "trainers": [], "start_model": "0" * 64}
        connection.execute(rounds.insert().values(**key, **opened, status=RoundStatus.AGGREGATING))
    upgrade(empty_database_url, "0020")
    asked = {"work": "learn", "updates": [[0, "1" * 64, 1.0]], "begin": [0.5]}
    with engine.begin() as connection:
        assert connection.execute(sa.select(assistances)).all() == []
        connection.execute(assistances.insert().values(**key, **asked, asked_at=at, deadline_at=at))
    with engine.begin() as connection:
        (row,) = connection.execute(sa.select(assistances)).all()
        assert (row.updates, row.begin, row.asked_at, row.outcome) == ([[0, "1" * 64, 1.0]], [0.5], at, None)
        connection.execute(rounds.delete())
        assert connection.execute(sa.select(assistances)).all() == [], "it goes with its round"
    downgrade(empty_database_url, "0019")
    engine.dispose()


def test_an_installation_of_schema_0020_has_counted_no_changes(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0020")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    with engine.begin() as connection:
        connection.execute(installation.update().values(id="0" * 32, created_at=at))
    upgrade(empty_database_url, "0021")
    with engine.begin() as connection:
        (row,) = connection.execute(sa.select(installation)).all()
        assert (row.id, row.created_at, row.changes) == ("0" * 32, at, 0)
    downgrade(empty_database_url, "0020")
    assert "changes" not in {column["name"] for column in sa.inspect(engine).get_columns("installation")}
    engine.dispose()


def test_events_of_schema_0021_keep_their_numbers_and_no_number_is_given_twice(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url, "0021")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
    told = {"at": at, "kind": "run_created", "actor": "admin", "detail": {"name": "a"}}

    def numbers() -> list[int]:
        with engine.begin() as connection:
            return list(connection.execute(sa.select(events.c.id).order_by(events.c.id)).scalars())

    with engine.begin() as connection:
        connection.execute(events.insert(), [told | {"round": number} for number in range(5)])
        before = connection.execute(sa.select(events).order_by(events.c.id)).all()
    for revision in ("0022", "0021", "0022"):
        (downgrade if revision == "0021" else upgrade)(empty_database_url, revision)
        with engine.begin() as connection:
            assert connection.execute(sa.select(events).order_by(events.c.id)).all() == before
        (key,) = sa.inspect(engine).get_foreign_keys("events")
        assert (key["referred_table"], key["options"].get("ondelete")) == ("runs", "CASCADE")
        assert [index["column_names"] for index in sa.inspect(engine).get_indexes("events")] == [["run"]]
    with engine.begin() as connection:
        connection.execute(events.delete().where(events.c.id >= 4))
        connection.execute(events.insert(), told)
    assert numbers()[-1] > before[-1].id
    engine.dispose()


def test_clients_of_schema_0011_are_not_erased(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0011")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        values = {"client": "north", "token_hash": "0" * 64, "version": "0.1", "registered_at": at}
        connection.execute(clients.insert().values(**values))
    upgrade(empty_database_url, "0012")
    with engine.begin() as connection:
        assert connection.execute(sa.select(clients.c.client, clients.c.erased_at)).all() == [("north", None)]
        connection.execute(clients.update().values(erased_at=at))
    downgrade(empty_database_url, "0011")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT client FROM clients")).all() == [("north",)]
    engine.dispose()


def test_a_run_of_schema_0014_that_stands_still_is_asked_whether_it_waits(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0014")
    engine = make_engine(empty_database_url)
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    with engine.begin() as connection:
        for name, status in (("stands", "running"), ("works", "running"), ("rests", "paused")):
            insert_run(connection, name, status)
        config = sa.text("UPDATE runs SET config = :config").bindparams(
            sa.bindparam("config", RunConfig(name="any").model_dump(mode="json"), type_=runs.c.config.type)
        )
        connection.execute(config)
        common = {"opened_at": at, "deadline_at": at, "trainers": [], "start_model": "0" * 64, "attempt": 1}
        for run, status in (("stands", RoundStatus.COMPLETED), ("works", RoundStatus.COLLECTING)):
            connection.execute(rounds.insert().values(**common, run=run, round=3, status=status))
    upgrade(empty_database_url, "0015")
    store = Store(engine)
    assert [run for run, _ in store.deadlines()] == ["stands", "works"]
    after = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    assert "stands" in store.overdue(after), "it is asked at once"
    store.apply("stands", TimePassed(), actor="coordinator", now=after)
    found = {run.run: (run.status, run.waiting_until) for run in store.runs()}
    assert found["stands"] == (RunStatus.WAITING, after + dt.timedelta(days=1))
    assert found["rests"] == (RunStatus.PAUSED, None)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET status = 'unheard-of'"))
    assert {"ix_runs_status", "ix_runs_waiting_until"} <= {
        index["name"] for index in sa.inspect(engine).get_indexes("runs")
    }
    downgrade(empty_database_url, "0014")
    with engine.connect() as connection:
        older = connection.execute(sa.text("SELECT run, status FROM runs ORDER BY run")).all()
        assert older == [("rests", "paused"), ("stands", "running"), ("works", "running")]
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM rounds")) == 2
    engine.dispose()
