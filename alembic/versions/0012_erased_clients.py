"""Clients that withdrew: when they were erased."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "when all but its numbers was erased"
    op.add_column(
        "clients", sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True, comment=comment)
    )


def downgrade() -> None:
    op.drop_column("clients", "erased_at")
