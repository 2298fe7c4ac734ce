"""Runs that go back to an earlier round: what rounds and attempts counted until then."""

import sqlalchemy as sa
from alembic import op

from server.database.check_constraints import replace_check

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BEFORE = ("collecting", "aggregating", "completed", "abandoned")
AFTER = (*BEFORE, "rewound")
COLUMNS = {
    "highest_attempt": None,
    "rewound_rounds": "the highest round when it went back",
    "rewound_attempts": "the highest attempt by then",
}


def upgrade() -> None:
    for name, comment in COLUMNS.items():
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0", comment=comment)
        op.add_column("runs", column)
    op.execute(
        "UPDATE runs SET highest_attempt = "
        "COALESCE((SELECT MAX(attempt) FROM rounds WHERE rounds.run = runs.run), 0)"
    )
    replace_check("rounds", "roundstatus", BEFORE, AFTER)


def downgrade() -> None:
    # the older program knows no such rounds: their models count as abandoned
    op.execute("UPDATE rounds SET status = 'abandoned' WHERE status = 'rewound'")
    replace_check("rounds", "roundstatus", AFTER, BEFORE)
    for name in reversed(COLUMNS):
        op.drop_column("runs", name)
