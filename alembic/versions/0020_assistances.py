"""What runs have asked their assistants for, a row an attempt of a round, and what came of it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    updates = "what it is to look at: index, digest and share of each update"
    op.create_table(
        "assistances",
        sa.Column("run", sa.String(63), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("work", sa.String(20), nullable=False),
        sa.Column("updates", JSON, nullable=False, comment=updates),
        sa.Column("begin", JSON, nullable=False, comment="the numbers that learning begins with"),
        sa.Column("model", sa.String(64), nullable=True, comment="what is distilled; kept until it is"),
        sa.Column("asked_at", TIME, nullable=False),
        sa.Column("deadline_at", TIME, nullable=False),
        sa.Column("answer", sa.String(64), nullable=True, comment="digest of a blob"),
        sa.Column("report", JSON, nullable=True),
        sa.Column("fault", sa.Text(), nullable=True, comment="why there will be no answer"),
        sa.Column("answered_at", TIME, nullable=True),
        sa.Column("outcome", sa.String(20), nullable=True, comment="used or missed; null: it is awaited"),
        sa.Column("reason", sa.Text(), nullable=True, comment="why the round went on without it"),
        sa.PrimaryKeyConstraint("run", "round", "attempt", name="pk_assistances"),
        sa.ForeignKeyConstraint(
            ["run", "round", "attempt"],
            ["rounds.run", "rounds.round", "rounds.attempt"],
            name="fk_assistances_run_rounds",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_assistances_answer", "assistances", ["answer"])


def downgrade() -> None:
    op.drop_table("assistances")
