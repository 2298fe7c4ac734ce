"""Secure rounds: identity keys of clients and their pins, the steps of a round's secure sum, and its sums."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SHA256 = sa.String(64)


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
    comment = "public Ed25519 key, hexadecimal; null: it has none"
    op.add_column("clients", sa.Column("identity", SHA256, nullable=True, comment=comment))
    comment = "the key with which it takes part; null: it has none"
    op.add_column("enrolments", sa.Column("identity", SHA256, nullable=True, comment=comment))
    comment = "of a secure run: what the sum that ends enrolment told"
    op.add_column("runs", sa.Column("totals", json, nullable=True, comment=comment))
    comment = "the step of a secure sum that is open"
    op.add_column("rounds", sa.Column("step", sa.String(20), nullable=True, comment=comment))
    comment = "the coordinator's half of a secure sum, JSON; null: updates arrive in clear"
    op.add_column("rounds", sa.Column("secure", sa.Text(), nullable=True, comment=comment))
    comment = "all that is known of a secure round's updates"
    op.add_column("rounds", sa.Column("sums", json, nullable=True, comment=comment))
    comment = "the step of a secure sum that it answered last"
    op.add_column("participants", sa.Column("answered", sa.String(20), nullable=True, comment=comment))
    op.create_table(
        "identity_pins",
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("fingerprint", SHA256, nullable=False),
        sa.Column("pinned_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("identity_pins")
    op.drop_column("participants", "answered")
    for name in ("sums", "secure", "step"):
        op.drop_column("rounds", name)
    op.drop_column("runs", "totals")
    op.drop_column("enrolments", "identity")
    op.drop_column("clients", "identity")
