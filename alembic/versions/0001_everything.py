"""Everything: clients, runs, rounds, the ledger, the event log."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# frozen copies of what tables.py says today: a migration does not change with the program
TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SLUG = sa.String(63)
SHA256 = sa.String(64)


def one_of(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=30)


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("digest", SHA256, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_blobs"),
    )
    op.create_table(
        "clients",
        sa.Column("client", SLUG, nullable=False),
        sa.Column("token_hash", SHA256, nullable=False),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("last_seen_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("client", name="pk_clients"),
        sa.UniqueConstraint("token_hash", name="uq_clients_token_hash"),
    )
    op.create_table(
        "join_tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("token_hash", SHA256, nullable=False),
        sa.Column("uses_left", sa.BigInteger(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_join_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_join_tokens_token_hash"),
    )
    op.create_table(
        "runs",
        sa.Column("run", SLUG, nullable=False),
        sa.Column(
            "version", sa.BigInteger(), nullable=False, comment="compare-and-swap: every transition adds one"
        ),
        sa.Column(
            "status",
            one_of("runstatus", "enrolling", "running", "paused", "completed", "stopped", "failed"),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("config", JSON, nullable=False),
        sa.Column("classes", JSON, nullable=False),
        sa.Column("manifest", JSON, nullable=False),
        sa.Column("completed_rounds", sa.BigInteger(), nullable=False),
        sa.Column("initial_model", SHA256, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("run", name="pk_runs"),
    )
    op.create_index("ix_runs_status", "runs", ["status"])

    op.create_table(
        "enrolments",
        sa.Column("run", SLUG, nullable=False),
        sa.Column("client", SLUG, nullable=False),
        sa.Column("role", one_of("role", "trainer", "evaluator"), nullable=False),
        sa.Column(
            "status",
            one_of(
                "enrolmentstatus", "awaiting_discrepancy", "ready", "away", "left", "finished", "declined"
            ),
            nullable=False,
        ),
        sa.Column("index", sa.BigInteger(), nullable=True),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.String(length=100), nullable=False),
        sa.Column("discrepancy", sa.Double(), nullable=True),
        sa.Column("discrepancy_metric", sa.String(length=20), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("enrolled_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["client"], ["clients.client"], name="fk_enrolments_client_clients"),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_enrolments_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "client", name="pk_enrolments"),
        sa.UniqueConstraint("run", "index", name="uq_enrolments_run_index"),
    )
    op.create_index("ix_enrolments_client", "enrolments", ["client"])

    op.create_table(
        "evaluations",
        sa.Column("run", SLUG, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False, comment="0: the initial model"),
        sa.Column("client", SLUG, nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("per_category", JSON, nullable=False),
        sa.Column("extra", JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["client"], ["clients.client"], name="fk_evaluations_client_clients"),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_evaluations_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "round", "client", name="pk_evaluations"),
    )
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.String(length=60), nullable=False),
        sa.Column("run", SLUG, nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("client", SLUG, nullable=True),
        sa.Column(
            "actor",
            sa.String(length=100),
            nullable=False,
            comment="who: admin, a client's id, or coordinator",
        ),
        sa.Column("detail", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_events_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_run", "events", ["run"])

    op.create_table(
        "rounds",
        sa.Column("run", SLUG, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column(
            "status",
            one_of("roundstatus", "collecting", "aggregating", "completed", "abandoned"),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("opened_at", TIME, nullable=False),
        sa.Column("deadline_at", TIME, nullable=False),
        sa.Column("closed_at", TIME, nullable=True, comment="no more updates are taken"),
        sa.Column("completed_at", TIME, nullable=True),
        sa.Column("trainers", JSON, nullable=False),
        sa.Column("start_model", SHA256, nullable=False),
        sa.Column("start_broadcast", SHA256, nullable=True),
        sa.Column("start_private", SHA256, nullable=True),
        sa.Column("model", SHA256, nullable=True),
        sa.Column("scored_model", SHA256, nullable=True),
        sa.Column("broadcast", SHA256, nullable=True),
        sa.Column("private", SHA256, nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name="fk_rounds_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "round", "attempt", name="pk_rounds"),
    )
    op.create_index("ix_rounds_broadcast", "rounds", ["broadcast"])
    op.create_index("ix_rounds_model", "rounds", ["model"])
    op.create_index("ix_rounds_scored_model", "rounds", ["scored_model"])
    op.create_index("ix_rounds_status", "rounds", ["status"])

    op.create_table(
        "participants",
        sa.Column("run", SLUG, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("client", SLUG, nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column(
            "status",
            one_of(
                "participantstatus",
                "invited",
                "training",
                "uploaded",
                "aggregated",
                "failed",
                "timed_out",
                "rejected",
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("relative_size", sa.Double(), nullable=False),
        sa.Column("taken_at", TIME, nullable=True),
        sa.Column("update", SHA256, nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("uploaded_at", TIME, nullable=True),
        sa.Column("progress", JSON, nullable=True),
        sa.Column("heartbeat_at", TIME, nullable=True),
        sa.Column("included", sa.Boolean(), nullable=True),
        sa.Column("size_share", sa.Double(), nullable=True),
        sa.Column("discrepancy", sa.Double(), nullable=True),
        sa.Column("discrepancy_share", sa.Double(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("size_weight", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["client"], ["clients.client"], name="fk_participants_client_clients"),
        sa.ForeignKeyConstraint(
            ["run", "round", "attempt"],
            ["rounds.run", "rounds.round", "rounds.attempt"],
            name="fk_participants_run_round_attempt_rounds",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run", "round", "attempt", "client", name="pk_participants"),
    )
    op.create_index("ix_participants_client_status", "participants", ["client", "status", "run", "round"])


def downgrade() -> None:
    for table in ("participants", "rounds", "events", "evaluations", "enrolments", "runs", "join_tokens"):
        op.drop_table(table)
    op.drop_table("clients")
    op.drop_table("blobs")
