"""What is wrong with a stored file, and when it was last checked."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    checked = "when the file was last read whole and compared"
    fault = "what is wrong with the file; null: nothing that is known"
    op.add_column(
        "blobs", sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True, comment=checked)
    )
    op.add_column("blobs", sa.Column("fault", sa.Text(), nullable=True, comment=fault))


def downgrade() -> None:
    op.drop_column("blobs", "fault")
    op.drop_column("blobs", "checked_at")
