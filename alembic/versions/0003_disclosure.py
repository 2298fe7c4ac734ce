"""How a client disclosed its discrepancy: exact, or noised with which epsilon."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "exact or noised: how the discrepancy was disclosed"
    op.add_column("enrolments", sa.Column("grade", sa.String(20), nullable=True, comment=comment))
    op.add_column("enrolments", sa.Column("epsilon", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("enrolments", "epsilon")
    op.drop_column("enrolments", "grade")
