"""Events (SQLite): the number of one that went with its run is never given again, as on PostgreSQL."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_anew(sqlite_autoincrement=True)


def downgrade() -> None:
    _make_anew(sqlite_autoincrement=False)


def _make_anew(**options: bool) -> None:
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("events", recreate="always", table_kwargs=options):
            pass
