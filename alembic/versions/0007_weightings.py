"""What weightings learn and keep: losses of clients, numbers behind a score, memory, changes of the model."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
    op.add_column("participants", sa.Column("start_loss", sa.Double(), nullable=True))
    op.add_column("participants", sa.Column("end_loss", sa.Double(), nullable=True))
    op.add_column("participants", sa.Column("details", json, nullable=True))
    op.add_column("rounds", sa.Column("start_memory", json, nullable=True))
    op.add_column("rounds", sa.Column("memory", json, nullable=True))
    op.add_column("rounds", sa.Column("adjustment", json, nullable=True))


def downgrade() -> None:
    for name in ("adjustment", "memory", "start_memory"):
        op.drop_column("rounds", name)
    for name in ("details", "end_loss", "start_loss"):
        op.drop_column("participants", name)
