"""Called by alembic; the connection and its transaction come from ``server.database.migrations``.

From the command line: ``alembic -x url=sqlite:///feddisco-data/feddisco.sqlite upgrade head``.
"""

import sqlalchemy as sa
from alembic import context

from server.database.migrations import migrating
from server.database.tables import metadata


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        compare_type=True,
        compare_server_default=True,
        transactional_ddl=True,  # SQLite too: the engine opens its transactions itself
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise SystemExit("Which database? Say: alembic -x url=sqlite:///path/to/file ...")
    with migrating(url) as connection:
        run(connection)
