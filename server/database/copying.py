"""The whole database as one SQLite file in the present schema, and back: the form of a backup."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import sqlalchemy as sa

from server.database.migrations import upgrade
from server.database.session import make_engine, reading, sqlite_file, translated, writing
from server.database.tables import metadata
from shared.files import storage_errors
from shared.problems import InvalidConfiguration

__all__ = ["is_in_use", "load_copy", "write_copy"]

ROWS = 1000
REPLACED = ".replaced"
"""What a SQLite file that a restore replaces is called from then on."""


def write_copy(url: str, target: Path) -> None:
    """A consistent copy of the database, as of one moment; others may write meanwhile.

    SQLite by its backup interface, PostgreSQL row by row from one snapshot.
    """
    source = sqlite_file(url)
    if source is not None:
        _copy_file(source, target)
        return
    upgrade(f"sqlite:///{target}")
    _copy_rows(url, f"sqlite:///{target}")
    _merge_log(target)


def load_copy(copy: Path, url: str, *, replace: bool) -> None:
    """Make the database what the copy is, brought to the present schema. ``copy`` is used up.

    Raises:
        InvalidConfiguration: there is a database with rows already, and ``replace`` is not set.
    """
    upgrade(f"sqlite:///{copy}")
    _merge_log(copy)
    if not replace and is_in_use(url):
        raise InvalidConfiguration(
            "there is a database with data already", hint="Choose an empty one, or give --replace."
        )
    target = sqlite_file(url)
    if target is None:
        upgrade(url)
        _copy_rows(f"sqlite:///{copy}", url)
        return
    with storage_errors(target.parent):
        if target.exists():
            _merge_log(target)
            target.replace(target.with_name(target.name + REPLACED))
    _copy_file(copy, target)


def is_in_use(url: str) -> bool:
    """Whether the database has rows that somebody would miss."""
    path = sqlite_file(url)
    if path is not None and not path.exists():
        return False
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            tables = [metadata.tables[name] for name in ("clients", "runs", "events")]
            return any(
                connection.has_table(table.name)
                and connection.select(sa.select(sa.literal(1)).select_from(table).limit(1)).first()
                is not None
                for table in tables
            )
    finally:
        engine.dispose()


def _copy_file(source: Path, target: Path) -> None:
    with translated(sa.create_engine(f"sqlite:///{source}")), storage_errors(target.parent):
        try:
            with (
                contextlib.closing(sqlite3.connect(source)) as old,
                contextlib.closing(sqlite3.connect(target)) as new,
            ):
                old.backup(new)
        except sqlite3.Error as error:
            raise sa.exc.DatabaseError("backup", None, error) from error
    _merge_log(target)


def _merge_log(path: Path) -> None:
    """One file, without a write-ahead log beside it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").close()


def _copy_rows(source: str, target: str) -> None:
    """Every row of every table, in one transaction on each side; what was in the target goes."""
    engines = make_engine(source), make_engine(target)
    try:
        with reading(engines[0]) as old, writing(engines[1]) as new:
            for table in reversed(metadata.sorted_tables):
                new.execute(table.delete())
            for table in metadata.sorted_tables:
                for rows in old.select(sa.select(table)).partitions(ROWS):
                    new.execute(table.insert(), [dict(row._mapping) for row in rows])
            new.continue_numbering(metadata.sorted_tables)
    finally:
        for engine in engines:
            engine.dispose()
