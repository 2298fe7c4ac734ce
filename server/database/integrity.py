"""Whether the database itself is in order: SQLite's own checks; on PostgreSQL, every row is read."""

from __future__ import annotations

import sqlalchemy as sa

from server.database.session import Reading, reading
from server.database.tables import metadata
from shared.problems import StorageUnavailable

__all__ = ["check_quickly", "find_faults"]

SHOWN = 20


def check_quickly(engine: sa.Engine) -> None:
    """For the start. SQLite: its ``quick_check``, which reads the file once. PostgreSQL watches over itself.

    Raises:
        StorageUnavailable: the file is damaged, or cannot be read.
    """
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        if found := _ask_sqlite(connection, "quick_check"):
            raise StorageUnavailable(
                f"the database {engine.url.database} is damaged: {found[0]}",
                hint="Restore a backup (docs/operations.md), and check the disk.",
            )


def find_faults(engine: sa.Engine) -> list[str]:
    """One sentence for each fault, at most 20; empty: nothing is wrong. Reads the whole database."""
    if engine.dialect.name != "sqlite":
        return [fault for table in metadata.sorted_tables if (fault := _read_whole(engine, table))]
    with reading(engine) as connection:
        dangling = [
            f"a row of {row[0]} refers to none of {row[2]}" for row in connection.pragma("foreign_key_check")
        ]
        return (_ask_sqlite(connection, "integrity_check") + dangling)[:SHOWN]


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
    return None
