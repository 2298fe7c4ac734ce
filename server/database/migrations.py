"""Alembic, driven from code: the tables come to be by the migrations and by nothing else."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from server.database.session import describe, make_engine, parse_url, reading, translated
from shared.problems import InvalidConfiguration, SchemaOutdated, StorageUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "check_current",
    "current",
    "downgrade",
    "head",
    "is_current",
    "migrating",
    "script_location",
    "upgrade",
]

_one_at_a_time = threading.Lock()  # alembic keeps its context in a module


def script_location() -> Path:
    """The migrations: beside ``server/`` in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_migrations", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise StorageUnavailable(
        f"the migrations are neither in {package / '_migrations'} nor in {package.parent / 'alembic'}",
        hint="Install the package again.",
    )


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    return config


def head() -> str:
    """The revision that this program needs."""
    from alembic.script import ScriptDirectory

    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "there is at least one migration"
    return revision


def current(engine: sa.Engine) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with reading(engine) as connection:
        if not connection.has_table("alembic_version"):
            return None
        version = sa.table("alembic_version", sa.column("version_num", sa.String))
        found: str | None = connection.select(sa.select(version.c.version_num)).scalar()
        return found


def is_current(engine: sa.Engine) -> bool:
    return current(engine) == head()


def check_current(engine: sa.Engine) -> None:
    """Raise :class:`SchemaOutdated` unless the database is at this program's revision."""
    found, needed = current(engine), head()
    if found != needed:
        raise SchemaOutdated(
            f"the database schema is at {found or 'nothing'}, this program needs {needed}",
            hint="Run `feddisco server migrate` (after a backup), or the version that fits the schema.",
        )


def upgrade(url: str | sa.URL, revision: str = "head") -> None:
    """Bring the database to ``revision``; nothing happens if it is there. Processes wait for one another.

    Raises :class:`SchemaOutdated` if a newer program made the schema.
    """
    from alembic import command
    from alembic.util import CommandError

    with _prepared(url) as config:
        try:
            command.upgrade(config, revision)
        except CommandError as error:
            raise SchemaOutdated(
                f"the database schema cannot be brought to {revision}: {error}",
                hint="A newer version of the program has made it; start that one, or restore a backup.",
            ) from error


def downgrade(url: str | sa.URL, revision: str = "base") -> None:
    """Take the database back to ``revision``: data in tables that go are lost."""
    from alembic import command

    with _prepared(url) as config:
        command.downgrade(config, revision)


@contextmanager
def _prepared(url: str | sa.URL) -> Iterator[Config]:
    config = _config()
    with _one_at_a_time, migrating(url) as connection:
        config.attributes["connection"] = connection
        yield config


@contextmanager
def migrating(url: str | sa.URL) -> Iterator[sa.Connection]:
    """One transaction for all steps, alone on the database, with SQLite's foreign keys off.

    Batch mode drops and makes tables anew: with foreign keys on, ON DELETE CASCADE would empty their
    children, and inside a transaction the switch does nothing. They are checked before the commit.
    """
    engine = make_engine(parse_url(url) if isinstance(url, str) else url, poolclass=NullPool)
    is_sqlite = engine.dialect.name == "sqlite"
    if is_sqlite:
        sa.event.listen(engine, "connect", _without_foreign_keys)
    with translated(engine), engine.begin() as connection:
        if not is_sqlite:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7305519, 1)")
            _check_encoding(connection)
        yield connection
        if is_sqlite:
            _check_foreign_keys(connection)


def _without_foreign_keys(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.execute("PRAGMA foreign_keys = OFF").close()


def _check_encoding(connection: sa.Connection) -> None:
    """Names, reasons and JSON have letters of all languages."""
    found = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if found != "UTF8":
        raise InvalidConfiguration(
            f"the encoding of the database {describe(connection.engine)} is {found}, not UTF8",
            hint="Create another: createdb --template template0 --encoding UTF8 --locale C.UTF-8 NAME.",
        )


def _check_foreign_keys(connection: sa.Connection) -> None:
    if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all():
        tables = sorted({str(row[0]) for row in broken})
        raise StorageUnavailable(
            f"the migration would leave {len(broken)} dangling references in {', '.join(tables)}; undone",
            hint="Restore a backup, or report this with the versions before and after.",
        )
