"""Admission: what a join token makes of its client, approved sizes, refusals, capped weights."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SLUG = sa.String(63)
BEFORE = ("awaiting_discrepancy", "ready", "away", "left", "finished", "declined")
AFTER = ("awaiting_approval", *BEFORE, "refused")


def upgrade() -> None:
    comment = "the only one that its join token allows"
    op.add_column("clients", sa.Column("role", sa.String(20), nullable=True, comment=comment))
    op.add_column("clients", sa.Column("group", SLUG, nullable=True, comment="as its join token said"))
    op.add_column("join_tokens", sa.Column("role", sa.String(20), nullable=True))
    op.add_column("join_tokens", sa.Column("group", SLUG, nullable=True))
    op.add_column("join_tokens", sa.Column("name", SLUG, nullable=True))
    comment = "the size that the operator approved; 0: the operator refused the client"
    op.add_column(
        "enrolments", sa.Column("approved_examples", sa.BigInteger(), nullable=True, comment=comment)
    )
    replace_check(BEFORE, AFTER)
    op.add_column("participants", sa.Column("uncapped_weight", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("participants", "uncapped_weight")
    # the older program knows neither status: who waits or was refused takes no part
    op.execute("UPDATE enrolments SET status = 'declined' WHERE status IN ('awaiting_approval', 'refused')")
    replace_check(AFTER, BEFORE)
    op.drop_column("enrolments", "approved_examples")
    for name in ("name", "group", "role"):
        op.drop_column("join_tokens", name)
    for name in ("group", "role"):
        op.drop_column("clients", name)


def replace_check(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Let ``enrolments.status`` be one of ``after``."""
    old, new = (f"status IN ({', '.join(repr(word) for word in words)})" for words in (before, after))
    if op.get_bind().dialect.name == "postgresql":
        name = op.f("ck_enrolments_enrolmentstatus")
        op.drop_constraint(name, "enrolments", type_="check")
        op.create_check_constraint(name, "enrolments", new)
        return
    rebuild_on_sqlite("enrolments", old, new)


def rebuild_on_sqlite(table: str, old: str, new: str) -> None:
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
