"""What each update of a round is like: norm, largest entry, cosine; its share under an aggregation rule."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = {
    "norm": "of its displacement, as the next two",
    "largest_entry": None,
    "cosine": "with the mean direction of the others",
    "share": "in the model, under the run's aggregation rule",
}


def upgrade() -> None:
    for name, comment in COLUMNS.items():
        op.add_column("participants", sa.Column(name, sa.Double(), nullable=True, comment=comment))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("participants", name)
