"""Runs that go back to an earlier round: what rounds and attempts counted until then."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BEFORE = ("collecting", "aggregating", "completed", "abandoned")
AFTER = (*BEFORE, "rewound")
COLUMNS = {
    "highest_attempt": None,
    "rewound_rounds": "the highest round when it went back",
    "rewound_attempts": "the highest attempt by then",
}


def upgrade() -> None:
    for name, comment in COLUMNS.items():
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0", comment=comment)
        op.add_column("runs", column)
    op.execute(
        "UPDATE runs SET highest_attempt = "
        "COALESCE((SELECT MAX(attempt) FROM rounds WHERE rounds.run = runs.run), 0)"
    )
    replace_check(BEFORE, AFTER)


def downgrade() -> None:
    # the older program knows no such rounds: their models count as abandoned
    op.execute("UPDATE rounds SET status = 'abandoned' WHERE status = 'rewound'")
    replace_check(AFTER, BEFORE)
    for name in reversed(COLUMNS):
        op.drop_column("runs", name)


def replace_check(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Let ``rounds.status`` be one of ``after``."""
    old, new = (f"status IN ({', '.join(repr(word) for word in words)})" for words in (before, after))
    if op.get_bind().dialect.name == "postgresql":
        name = op.f("ck_rounds_roundstatus")
        op.drop_constraint(name, "rounds", type_="check")
        op.create_check_constraint(name, "rounds", new)
        return
    rebuild_on_sqlite("rounds", old, new)


def rebuild_on_sqlite(table: str, old: str, new: str) -> None:
    """SQLite changes no constraint: the table is made anew as it was but for these words, and filled."""
    connection = op.get_bind()
    statements = sa.text("SELECT type, sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL")
    made = connection.execute(statements, {"table": table}).all()
    (create,) = [sql for kind, sql in made if kind == "table"]
    indexes = [sql for kind, sql in made if kind == "index"]
    head, body = create.split("(", 1)
    if create.count(old) != 1 or table not in head:
        raise RuntimeError(f"table {table} is not as expected: {create}")
    for statement in (
        f"CREATE TABLE {table}_new ({body.replace(old, new)}",
        f"INSERT INTO {table}_new SELECT * FROM {table}",  # noqa: S608 - a table of ours
        f"DROP TABLE {table}",
        f"ALTER TABLE {table}_new RENAME TO {table}",
        *indexes,
    ):
        op.execute(statement)
