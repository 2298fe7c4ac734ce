"""Evaluations: the confusion matrix, where a run asks for it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    comment = "shares, by true class and by what the model said"
    op.add_column("evaluations", sa.Column("confusion", JSON, nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("evaluations", "confusion")
