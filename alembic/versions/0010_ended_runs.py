"""Ended runs: put away, and the records of those that were deleted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("runs", sa.Column("archived_at", TIME, nullable=True))
    op.create_table(
        "deletions",
        sa.Column("id", number, nullable=False),
        sa.Column("run", sa.String(63), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME, nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("record", json, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deletions"),
        sa.UniqueConstraint("run", name="uq_deletions_run"),
    )


def downgrade() -> None:
    op.drop_table("deletions")
    op.drop_column("runs", "archived_at")
