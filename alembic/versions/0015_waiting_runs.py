"""Runs that cannot go on are waiting: the status, since when, and until when."""

import sqlalchemy as sa
from alembic import op

from server.database.check_constraints import replace_check

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

BEFORE = ("enrolling", "running", "paused", "completed", "stopped", "failed")
AFTER = (*BEFORE, "waiting")
COLUMNS = {
    "waiting_since": "since when something keeps it from going on; null: nothing does",
    "waiting_until": "when it then pauses, or the state machine is asked what follows",
}


def upgrade() -> None:
    replace_check("runs", "runstatus", BEFORE, AFTER)
    for name, comment in COLUMNS.items():
        op.add_column("runs", sa.Column(name, sa.DateTime(timezone=True), nullable=True, comment=comment))
    op.create_index("ix_runs_waiting_until", "runs", ["waiting_until"])
    # a running run without an open round stands still: the state machine is asked at once whether it waits
    op.execute(
        "UPDATE runs SET waiting_since = CURRENT_TIMESTAMP, waiting_until = CURRENT_TIMESTAMP "
        "WHERE status = 'running' AND NOT EXISTS (SELECT 1 FROM rounds "
        "WHERE rounds.run = runs.run AND rounds.status IN ('collecting', 'aggregating'))"
    )


def downgrade() -> None:
    # the older program says running of a run that waits for clients
    op.execute("UPDATE runs SET status = 'running', reason = NULL WHERE status = 'waiting'")
    op.drop_index("ix_runs_waiting_until", "runs")
    for name in reversed(COLUMNS):
        op.drop_column("runs", name)
    replace_check("runs", "runstatus", AFTER, BEFORE)
