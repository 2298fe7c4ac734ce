"""The database's id, and when a coordinator was last alive on it."""

import datetime as dt
import secrets

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "installation",
        sa.Column("one", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "alive_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when a coordinator last noted that it is alive",
        ),
        sa.CheckConstraint("one = 1", name=op.f("ck_installation_one")),
        sa.PrimaryKeyConstraint("one", name=op.f("pk_installation")),
    )
    events = sa.table("events", sa.column("at", sa.DateTime(timezone=True)))
    last = op.get_bind().scalar(sa.select(sa.func.max(events.c.at)))
    now = dt.datetime.now(dt.UTC)
    op.bulk_insert(table, [{"one": 1, "id": secrets.token_hex(16), "created_at": now, "alive_at": last}])


def downgrade() -> None:
    op.drop_table("installation")
