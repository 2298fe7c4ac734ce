"""Travelling models: what clients go on from between two averages, and who starts from which."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "travelling",
        sa.Column("run", sa.String(63), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("client", sa.BigInteger(), nullable=False, comment="index of who trained it last"),
        sa.Column("earned", sa.Double(), nullable=False, comment="what it counts at the average so far"),
        sa.PrimaryKeyConstraint("run", "round", "attempt", "number", name="pk_travelling"),
        sa.ForeignKeyConstraint(
            ["run", "round", "attempt"],
            ["rounds.run", "rounds.round", "rounds.attempt"],
            name="fk_travelling_run_rounds",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_travelling_model", "travelling", ["model"])
    comment = "if it is not the round's: a travelling model"
    op.add_column("participants", sa.Column("start_model", sa.String(64), nullable=True, comment=comment))
    comment = "its number among the models that travel"
    op.add_column("participants", sa.Column("start_number", sa.BigInteger(), nullable=True, comment=comment))
    comment = "index of who had trained it last"
    op.add_column("participants", sa.Column("started_from", sa.BigInteger(), nullable=True, comment=comment))


def downgrade() -> None:
    for column in ("started_from", "start_number", "start_model"):
        op.drop_column("participants", column)
    op.drop_table("travelling")
