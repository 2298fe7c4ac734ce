"""Which words a column may hold: changed by migrations, on SQLite by making the table anew."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

__all__ = ["replace_check"]


def replace_check(table: str, name: str, before: Sequence[str], after: Sequence[str]) -> None:
    """Let ``status`` of ``table`` be one of ``after``; ``name`` is the constraint's, without its table."""
    old, new = (f"status IN ({', '.join(repr(word) for word in words)})" for words in (before, after))
    if op.get_bind().dialect.name == "postgresql":
        full = op.f(f"ck_{table}_{name}")
        op.drop_constraint(full, table, type_="check")
        op.create_check_constraint(full, table, new)
        return
    _rebuild_on_sqlite(table, old, new)


def _rebuild_on_sqlite(table: str, old: str, new: str) -> None:
    """SQLite changes no constraint: the table is made anew as it was but for these words, and filled."""
    connection = op.get_bind()
    statements = sa.text("SELECT type, sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL")
    made = connection.execute(statements, {"table": table}).all()
    (create,) = [sql for kind, sql in made if kind == "table"]
    indexes = [sql for kind, sql in made if kind == "index"]
    if create.count(old) != 1:
        raise RuntimeError(f"table {table} does not have the constraint {old}")
    head, body = create.split("(", 1)
    fresh = f"CREATE TABLE {table}_new ({body.replace(old, new)}"
    if table not in head:
        raise RuntimeError(f"table {table} is made by another statement than expected: {head}")
    for statement in (
        fresh,
        f"INSERT INTO {table}_new SELECT * FROM {table}",  # noqa: S608 - a table of ours
        f"DROP TABLE {table}",
        f"ALTER TABLE {table}_new RENAME TO {table}",
        *indexes,
    ):
        op.execute(statement)
