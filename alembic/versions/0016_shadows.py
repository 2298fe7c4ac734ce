"""Shadows: models that other weightings make of a round's updates, and their scores."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "shadows",
        sa.Column("run", sa.String(63), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False, comment="of the weighting, with its options"),
        sa.Column("model", sa.String(64), nullable=True, comment="kept until the evaluators have scored it"),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("weights", JSON, nullable=False, comment="by client index"),
        sa.Column("reason", sa.Text(), nullable=True, comment="why there is no model"),
        sa.Column("seconds", sa.Double(), nullable=False, comment="how long making it took"),
        sa.PrimaryKeyConstraint("run", "round", "attempt", "name", name="pk_shadows"),
        sa.ForeignKeyConstraint(
            ["run", "round", "attempt"],
            ["rounds.run", "rounds.round", "rounds.attempt"],
            name="fk_shadows_run_rounds",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_shadows_model", "shadows", ["model"])
    comment = "scores of the round's shadows, by name"
    op.add_column("evaluations", sa.Column("shadows", JSON, nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("evaluations", "shadows")
    op.drop_table("shadows")
