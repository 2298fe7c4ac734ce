"""Participants: what a run's private training has cost the examples at a site, where the site tells it."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "of the run's differential privacy, where told"
    op.add_column("participants", sa.Column("epsilon", sa.Double(), nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("participants", "epsilon")
