"""The whole database as one SQLite file in the present schema, and back: the form of a backup."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import sqlalchemy as sa

from server.database.migrations import upgrade
from server.database.session import make_engine, reading, sqlite_file, translated, writing
from server.database.tables import metadata
from shared.files import storage_errors
from shared.problems import InvalidConfiguration, StorageUnavailable

__all__ = ["Url", "file_url", "is_in_use", "load_copy", "unchanging_url", "write_copy"]

ROWS = 1000
Url: TypeAlias = str | sa.URL
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
    upgrade(file_url(target))
    _copy_rows(url, file_url(target))
    _merge_log(target)


def file_url(path: Path | str) -> sa.URL:
    """Of a SQLite file, whatever characters its name has."""
    return sa.URL.create("sqlite", database=str(path))


def unchanging_url(path: Path) -> sa.URL:
    """Of a SQLite file that nobody writes: opening it changes nothing, on no medium."""
    query = {"immutable": "1", "mode": "ro", "uri": "true"}
    return file_url(f"file:{quote(str(path.absolute()))}").set(query=query)


def load_copy(copy: Path, url: str, *, replace: bool) -> Path | None:
    """Make the database what the copy is, brought to the present schema. ``copy`` is used up.

    Returns:
        What the SQLite file that was there is called now, if there was one.

    Raises:
        InvalidConfiguration: there is a database with rows already, and ``replace`` is not set.
        StorageUnavailable: another program has the SQLite file open, or a disk refuses.
    """
    upgrade(file_url(copy))
    _merge_log(copy)
    if not replace and is_in_use(url):
        raise InvalidConfiguration(
            "there is a database with data already", hint="Choose an empty one, or give --replace."
        )
    target = sqlite_file(url)
    if target is None:
        upgrade(url)
        _copy_rows(file_url(copy), url)
        return None
    kept = _set_aside(target) if target.exists() else None
    _copy_file(copy, target)
    return kept


def _set_aside(path: Path) -> Path:
    """Give the SQLite file a name under which nothing is yet; one that is damaged as well, as it is."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            _leave_log(connection)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise StorageUnavailable(
                f"another program has the database {path} open", hint="Close it, then restore again."
            ) from error
    numbers = itertools.chain(("",), map("-{}".format, itertools.count(2)))
    names = (path.with_name(f"{path.name}{REPLACED}{number}") for number in numbers)
    kept = next(name for name in names if not name.exists())
    with storage_errors(path.parent):
        for suffix in ("-wal", "-shm", ""):  # of a damaged one, which could not be merged
            part = Path(f"{path}{suffix}")
            if part.exists():
                part.replace(f"{kept}{suffix}")
    return kept


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
    with (
        _driver_errors(source),
        storage_errors(target.parent),
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
    _merge_log(target)


def _merge_log(path: Path) -> None:
    """One file, without a write-ahead log beside it."""
    with _driver_errors(path), contextlib.closing(sqlite3.connect(path)) as connection:
        _leave_log(connection)


def _leave_log(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = DELETE").close()


@contextlib.contextmanager
def _driver_errors(path: Path) -> Iterator[None]:
    """Those of SQLite's own interface, as those that come through SQLAlchemy."""
    with translated(sa.create_engine(file_url(path))):
        try:
            yield
        except sqlite3.Error as error:
            raise sa.exc.DatabaseError("backup", None, error) from error


def _copy_rows(source: Url, target: Url) -> None:
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
