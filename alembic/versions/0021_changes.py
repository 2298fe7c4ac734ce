"""Installation: a number that moves with changes of which the event log says nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "counts commits that concern clients and have no event"
    column = sa.Column("changes", sa.BigInteger, nullable=False, server_default="0", comment=comment)
    op.add_column("installation", column)


def downgrade() -> None:
    op.drop_column("installation", "changes")
