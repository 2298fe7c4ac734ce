"""Whether the database itself is in order: SQLite's own checks, and every row is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from server.database.session import Reading, describe, reading
from server.database.tables import metadata
from shared.problems import StorageUnavailable

__all__ = ["check_quickly", "find_faults", "rows_are_read"]

SHOWN = 20
_HINT = "Restore a backup (docs/operations.md), and check the disk."


def check_quickly(engine: sa.Engine) -> None:
    """For the start. SQLite: its ``quick_check``, which reads the file once. PostgreSQL watches over itself.

    Raises:
        StorageUnavailable: the file is damaged, or cannot be read.
    """
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        if found := _ask_sqlite(connection, "quick_check"):
            raise StorageUnavailable(f"the database {engine.url.database} is damaged: {found[0]}", hint=_HINT)


@contextmanager
def rows_are_read(engine: sa.Engine) -> Iterator[None]:
    """For the start: a date that is none, or JSON that is none, has been written by no program.

    Raises:
        StorageUnavailable: in place of a ValueError.
    """
    try:
        yield
    except ValueError as error:
        told = str(error).partition("\n")[0]
        raise StorageUnavailable(
            f"the database {describe(engine)} has a value that cannot be read: {told}", hint=_HINT
        ) from error


def find_faults(engine: sa.Engine) -> list[str]:
    """One sentence for each fault, at most 20; empty: nothing is wrong. Reads the whole database."""
    unreadable = [fault for table in metadata.sorted_tables if (fault := _read_whole(engine, table))]
    if engine.dialect.name != "sqlite":
        return unreadable
    with reading(engine) as connection:
        dangling = [
            f"a row of {row[0]} refers to none of {row[2]}" for row in connection.pragma("foreign_key_check")
        ]
        return (_ask_sqlite(connection, "integrity_check") + dangling + unreadable)[:SHOWN]


def _ask_sqlite(connection: Reading, check: str) -> list[str]:
    found = [str(row[0]) for row in connection.pragma(f"{check}({SHOWN})")]
    return [] if found == ["ok"] else found


def _read_whole(engine: sa.Engine, table: sa.Table) -> str | None:
    """PostgreSQL compares each page with its checksum, where the cluster has them, and unpacks each value."""
    with reading(engine) as connection:  # one for each: after an error a transaction answers nothing more
        try:
            connection.read_whole(table)
        except sa.exc.DBAPIError as error:
            return f"table {table.name}: {str(error.orig).strip().splitlines()[0]}"
        except ValueError as error:
            return f"table {table.name} has a value that cannot be read: {str(error).splitlines()[0]}"
    return None
