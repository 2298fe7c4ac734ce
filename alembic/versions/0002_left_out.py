"""What a client's data hold that is not trained on: numbers by reason, beside its enrolment."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    comment = "numbers by reason; null: the client said nothing of it"
    op.add_column("enrolments", sa.Column("left_out", JSON, nullable=True, comment=comment))


def downgrade() -> None:
    op.drop_column("enrolments", "left_out")
