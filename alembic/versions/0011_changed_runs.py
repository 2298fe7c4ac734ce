"""Runs whose configuration is changed: how often it was."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "how often the config was changed"
    op.add_column(
        "runs", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0", comment=comment)
    )


def downgrade() -> None:
    op.drop_column("runs", "revision")
