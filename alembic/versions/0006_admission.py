"""Admission: what a join token makes of its client, approved sizes, refusals, capped weights."""

import sqlalchemy as sa
from alembic import op

from server.database.check_constraints import replace_check

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SLUG = sa.String(63)
BEFORE = ("awaiting_discrepancy", "ready", "away", "left", "finished", "declined")
AFTER = ("awaiting_approval", *BEFORE, "refused")


def upgrade() -> None:
    comment = "the only one that its join token allows"
    op.add_column("clients", sa.Column("role", sa.String(20), nullable=True, comment=comment))
    op.add_column("clients", sa.Column("group", SLUG, nullable=True, comment="as its join token said"))
    op.add_column("join_tokens", sa.Column("role", sa.String(20), nullable=True))
    op.add_column("join_tokens", sa.Column("group", SLUG, nullable=True))
    op.add_column("join_tokens", sa.Column("name", SLUG, nullable=True))
    comment = "the size that the operator approved; 0: the operator refused the client"
    op.add_column(
        "enrolments", sa.Column("approved_examples", sa.BigInteger(), nullable=True, comment=comment)
    )
    replace_check("enrolments", "enrolmentstatus", BEFORE, AFTER)
    op.add_column("participants", sa.Column("uncapped_weight", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("participants", "uncapped_weight")
    # the older program knows neither status: who waits or was refused takes no part
    op.execute("UPDATE enrolments SET status = 'declined' WHERE status IN ('awaiting_approval', 'refused')")
    replace_check("enrolments", "enrolmentstatus", AFTER, BEFORE)
    op.drop_column("enrolments", "approved_examples")
    for name in ("name", "group", "role"):
        op.drop_column("join_tokens", name)
    for name in ("group", "role"):
        op.drop_column("clients", name)
