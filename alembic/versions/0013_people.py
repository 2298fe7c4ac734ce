"""People with roles, sessions that end at the coordinator, and an audit log chained by hash."""

import datetime as dt
import hashlib
import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

ROLES = ("viewer", "operator", "admin")
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column(
            "role",
            sa.Enum(*ROLES, name="userrole", native_enum=False, create_constraint=False, length=30),
            nullable=False,
        ),
        sa.Column("runs", JSON, nullable=True, comment="names of the runs that the role is for; null: all"),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("renewed_at", TIME, nullable=True, comment="when the token was last replaced"),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
        sa.UniqueConstraint("token_hash", name="uq_users_token_hash"),
        sa.CheckConstraint(f"role IN ({', '.join(map(repr, ROLES))})", name=op.f("ck_users_userrole")),
    )
    op.create_table(
        "sessions",
        sa.Column(
            "session_hash", sa.String(64), nullable=False, comment="of what the browser's cookie holds"
        ),
        sa.Column(
            "token_hash",
            sa.String(64),
            nullable=False,
            comment="of the token that was given at the sign-in",
        ),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ends_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True, comment="by signing out"),
        sa.PrimaryKeyConstraint("session_hash", name="pk_sessions"),
    )
    audit_log = op.create_table(
        "audit_log",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "entry",
            sa.Text(),
            nullable=False,
            comment="JSON, byte for byte as it was hashed; holds the hash before it",
        ),
        sa.Column("hash", sa.String(64), nullable=False, comment="SHA-256 of the entry"),
        sa.PrimaryKeyConstraint("number", name="pk_audit_log"),
    )
    newest = op.get_bind().scalar(sa.text("SELECT max(id) FROM events"))
    if newest is not None:
        op.bulk_insert(audit_log, [begin_after(newest)])


def begin_after(event: int) -> dict[str, object]:
    """The first entry where there are events that no entry stands for."""
    written = {"number": 1, "at": dt.datetime.now(dt.UTC).isoformat(), "actor": "coordinator"}
    written |= {"action": "audit_begun", "run": None, "client": None}
    written |= {"detail": {"after_event": event}, "previous": "0" * 64}
    entry = json.dumps(written, separators=(",", ":"))
    return {"number": 1, "entry": entry, "hash": hashlib.sha256(entry.encode()).hexdigest()}


def downgrade() -> None:
    for table in ("audit_log", "sessions", "users"):
        op.drop_table(table)
