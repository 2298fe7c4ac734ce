"""Engines and transactions.

``make_engine`` sets what SQLite needs so that a transaction is one: without it,
sqlite3 opens no transaction before a SELECT, and "read, then write" loses updates. No logic depends on
SQLite's single writer all the same: PostgreSQL at READ COMMITTED would lose them too.

``reading`` and ``writing`` give two types, so that a function that writes cannot be handed a
read-only connection; the database refuses it as well.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from shared.problems import InvalidConfiguration, StorageUnavailable

__all__ = [
    "Reading",
    "Statement",
    "Writing",
    "connection_options",
    "describe",
    "make_engine",
    "parse_url",
    "reading",
    "sqlite_file",
    "translated",
    "writing",
]

BUSY_SECONDS = 30
CHECKED_SECONDS = 1.0
# every thread that may ask at once has a connection: 40 of the pages, 20 of the API, and aggregations
POOL = {"pool_size": 20, "max_overflow": 40, "pool_timeout": 10}
_READ_ONLY = "feddisco_read_only"
_DURABLE = "feddisco_durable"
_LEVEL = "feddisco_synchronous"
_USED_AT = "feddisco_used_at"
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Statement = tuple[sa.UpdateBase, Rows]
"""To be executed with these parameters: one row, or several at once."""


class Reading:
    """A connection inside a read-only transaction: one consistent snapshot."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        return self._connection.dialect.name

    def has_table(self, name: str) -> bool:
        return sa.inspect(self._connection).has_table(name)

    def select(
        self, statement: sa.Select[*tuple[Any, ...]], parameters: Mapping[str, Any] | None = None
    ) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.execute(statement, parameters)

    def pragma(self, name: str) -> Sequence[Any]:
        """SQLite only: what a PRAGMA that changes nothing answers."""
        return self._connection.exec_driver_sql(f"PRAGMA {name}").all()

    def read_whole(self, table: sa.Table) -> None:
        """Every value of every row is read. PostgreSQL does so itself, also what is stored out of line.

        SQLite takes anything for a date or for JSON. Raises ValueError: a value is not what its column says.
        """
        if self.dialect == "sqlite":
            for _ in self.select(sa.select(table)):
                pass
            return
        name = self._connection.dialect.identifier_preparer.format_table(table)
        self._connection.exec_driver_sql(f"SELECT sum(length(t::text)) FROM {name} AS t")  # noqa: S608


class Writing(Reading):
    """A connection inside a transaction that is committed at the end of its ``with`` block.

    ``pending``: by run, what is known of it once this is committed (``server.database.step.known``); None:
    it has to be read. ``events``: ids of those that were written on PostgreSQL, and ``changes`` the number
    that stands for a commit without any (``server.database.others``).
    """

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self.pending: dict[str, Any] = {}
        self.has_written = False
        self.events: list[int] = []
        self.changes: int | None = None

    def execute(
        self, statement: sa.UpdateBase, parameters: Rows | None = None
    ) -> sa.CursorResult[*tuple[Any, ...]]:
        self.has_written = True
        return self._connection.execute(statement, parameters)

    def insert_new(self, table: sa.Table, rows: Rows, conflict: str | None = None) -> int:
        """INSERT ... ON CONFLICT DO NOTHING; how many rows are new.

        ``conflict`` is the column whose value may be taken already; None: any unique key.
        """
        self.has_written = True
        return self._connection.execute(_insert_new(self.dialect, table, conflict), rows).rowcount

    def continue_numbering(self, tables: Sequence[sa.Table]) -> None:
        """After rows came in with their numbers: let the next row of each table get the next one."""
        if self.dialect != "postgresql":
            return  # SQLite takes the largest and adds one, of events the largest that there ever was
        for table in tables:
            column = table.autoincrement_column
            if column is not None:
                name = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
                newest = f"(SELECT max({column.name}) FROM {table.name})"  # noqa: S608
                self._connection.exec_driver_sql(
                    f"SELECT setval({name}, {newest}) WHERE {newest} IS NOT NULL"
                )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What is written inside it is undone if it raises; the transaction goes on."""
        pending = dict(self.pending)
        try:
            with self._connection.begin_nested():
                yield
        except BaseException:
            self.pending = pending
            raise

    def translate(self, error: Exception) -> Exception:
        """The error as the transaction would raise it (:func:`translated`)."""
        try:
            with translated(self._connection.engine):
                raise error
        except Exception as told:
            return told

    def lock_files(self, *, exclusive: bool) -> None:
        """PostgreSQL only: keep others from deleting stored files, or with ``exclusive`` from storing any.

        Held until the end of the transaction.
        """
        shared = "" if exclusive else "_shared"
        self._connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{shared}(7305519, 3)")

    def lock_events(self) -> None:
        """Let event ids become visible in their order: whoever asks for "after id N" misses none.

        SQLite has one writer anyway. Taken last in a transaction and held until its commit.
        """
        if self.dialect == "postgresql":
            self._connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7305519, 2)")


@functools.cache
def _insert_new(dialect: str, table: sa.Table, conflict: str | None) -> sa.UpdateBase:
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(table).on_conflict_do_nothing(index_elements=None if conflict is None else [conflict])
    # the driver knows how many rows an INSERT made; SQLAlchemy forgets it unless asked
    return statement.execution_options(preserve_rowcount=True)


# PostgreSQL refuses NaN in JSON, SQLite takes it: refused for both
_to_json = functools.partial(json.dumps, allow_nan=False)


def parse_url(url: str) -> sa.URL:
    """The URL with the installed driver; raises :class:`InvalidConfiguration` without the password."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        # the text may hold a password: it is not repeated
        raise InvalidConfiguration("the database URL cannot be read", hint=_URL_HINT) from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise InvalidConfiguration(
                f"{url} names no file: every connection would have its own", hint=_URL_HINT
            )
        return parsed.set(drivername="sqlite+pysqlite")
    if "@" in (parsed.host or ""):
        # part of a password is taken for the host, which errors repeat
        raise InvalidConfiguration(
            "the database URL has more than one @",
            hint="In the user's name and password write @ as %40, : as %3A, / as %2F, # as %23 and % as %25.",
        )
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidConfiguration(f"no database driver for {parsed.drivername}://", hint=_URL_HINT)


def sqlite_file(url: str) -> Path | None:
    """The database's file; None for PostgreSQL. Raises :class:`InvalidConfiguration`."""
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


_URL_HINT = "Use sqlite:///path/to/file or postgresql://user:password@host:port/name."


def make_engine(
    url: str | sa.URL,
    *,
    synchronous: Literal["FULL", "NORMAL"] = "FULL",
    poolclass: type[sa.Pool] = sa.QueuePool,
) -> sa.Engine:
    """An engine for ``sqlite:///path`` or ``postgresql://...``.

    ``synchronous`` (SQLite): FULL, because an update that was answered 2xx must survive the host's death;
    with WAL, NORMAL would lose the last commits then. A pool keeps 20 connections and opens at most 60.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    options: dict[str, Any] = {"poolclass": poolclass, "json_serializer": _to_json}
    if poolclass is sa.QueuePool:
        options |= POOL
    if parsed.get_backend_name() == "postgresql":
        # the newest is used first: it has seen the server just now, and knows the common statements
        engine = sa.create_engine(
            parsed,
            connect_args=connection_options(parsed),
            **options | ({"pool_use_lifo": True} if poolclass is sa.QueuePool else {}),
        )
        _check_idle(engine)
        return engine
    engine = sa.create_engine(parsed, connect_args={"timeout": BUSY_SECONDS}, **options)
    _prepare_sqlite(engine, synchronous)
    return engine


def connection_options(url: sa.URL) -> dict[str, str | int]:
    """For libpq, but for what the URL says itself.

    A host that vanishes closes no connection: without limits a statement waits for a quarter of an hour,
    and one that only listens for two hours.
    """
    options: dict[str, str | int] = {
        "connect_timeout": 10,
        "application_name": "feddisco",
        "client_encoding": "utf8",  # SQL_ASCII is refused in words later; the driver would give bytes
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,  # milliseconds; where the system has it
    }
    return {name: value for name, value in options.items() if name not in url.query}


def _check_idle(engine: sa.Engine) -> None:
    """Before a connection is used that has lain idle for a while: the server may have gone meanwhile.

    One that breaks within :data:`CHECKED_SECONDS` costs one error, after which all are opened anew.
    """

    def checkout(connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: Any) -> None:
        if time.monotonic() - entry.info.get(_USED_AT, time.monotonic()) < CHECKED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error  # the pool opens another

    def checkin(_connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        entry.info[_USED_AT] = time.monotonic()

    sa.event.listen(engine, "checkout", checkout)
    sa.event.listen(engine, "checkin", checkin)


def _prepare_sqlite(engine: sa.Engine, synchronous: str) -> None:
    def connected(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        assert isinstance(connection, sqlite3.Connection)
        connection.isolation_level = None  # the driver opens no transaction by itself; `begin` does
        for pragma in (
            f"busy_timeout = {BUSY_SECONDS * 1000}",
            "journal_mode = WAL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    def begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if options.get(_READ_ONLY, False):
            connection.exec_driver_sql("BEGIN")
            return
        level = synchronous if options.get(_DURABLE, True) else "NORMAL"
        if connection.info.get(_LEVEL) != level:
            connection.exec_driver_sql(f"PRAGMA synchronous = {level}")
            connection.info[_LEVEL] = level
        # a deferred BEGIN that reads and then writes meets a snapshot conflict that no timeout waits for
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begin)


@contextmanager
def writing(engine: sa.Engine, *, durable: bool = True) -> Iterator[Writing]:
    """One transaction: committed at the end of the block, rolled back if it raises.

    Without ``durable`` the commit does not wait for the disk: it survives the death of the process, but
    perhaps not that of the host, if no durable commit follows it.
    """
    with translated(engine), engine.connect() as connection:
        connection.execution_options(**{_DURABLE: durable})
        with connection.begin():
            if not durable and engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield Writing(connection)


@contextmanager
def reading(engine: sa.Engine, *, once: bool = False) -> Iterator[Reading]:
    """One read-only transaction over one consistent snapshot; it never waits for a writer.

    ``once``: for a single statement, which is a snapshot of its own. To PostgreSQL that is one message in
    place of three.
    """
    with translated(engine), engine.connect().execution_options(**_options(engine, once)) as connection:
        yield Reading(connection)
        if engine.dialect.name == "postgresql":
            connection.commit()  # at a ROLLBACK the driver forgets the statements that it has prepared


def _options(engine: sa.Engine, once: bool) -> dict[str, Any]:
    if engine.dialect.name != "postgresql":
        return {_READ_ONLY: True}
    if once:
        return {"isolation_level": "AUTOCOMMIT"}
    return {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}


def describe(engine: sa.Engine) -> str:
    """The database in words, without its password."""
    if engine.dialect.name == "sqlite":
        return str(engine.url.database)
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=True)


_OUR_MISTAKES = (
    sa.exc.DataError,
    sa.exc.IntegrityError,
    sa.exc.InternalError,
    sa.exc.NotSupportedError,
    sa.exc.ProgrammingError,
)


def _is_set_up_otherwise(cause: BaseException | None) -> bool:
    """What PostgreSQL refuses for its own state (rights, a standby, damage), whatever the statement."""
    state = getattr(cause, "sqlstate", None) or ""
    return state in ("42501", "25006", "0A000") or state.startswith("XX")


@contextmanager
def translated(engine: sa.Engine) -> Iterator[None]:
    """Driver errors about the connection become :class:`StorageUnavailable`; our own mistakes stay."""
    try:
        yield
    except (sa.exc.DatabaseError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if isinstance(error, _OUR_MISTAKES) and not _is_set_up_otherwise(cause):
            raise
        first_line = str(cause).strip().partition("\n")[0]
        raise StorageUnavailable(
            f"the database {describe(engine)} does not answer: {first_line}",
            hint=_advise(first_line),
            public="the database does not answer",
        ) from error
    except UnicodeDecodeError as error:  # of SQLite's own message, with a name out of a damaged schema
        raise StorageUnavailable(
            f"the database {describe(engine)} is damaged: text in it is no text", hint=_ADVICE["malformed"]
        ) from error


_ADVICE = {  # SQLite's words, then PostgreSQL's
    "is full": "The disk is full: free space or move the database to a larger disk.",
    "readonly": "Make the file and its folder writable for this process's user.",
    "unable to open": "Create its folder, or mount the volume that it is on.",
    "disk I/O error": "Look at the disk and at the system's log.",
    "malformed": "The file is damaged: restore a backup (docs/operations.md), and check the disk.",
    "not a database": "The file is damaged, or another program's: restore a backup, or choose another file.",
    "authentication failed": "Check user and password in the database URL (`@` and `/` in them as %40, %2F).",
    "no password supplied": "Write the password into the database URL: postgresql://USER:PASSWORD@HOST/DATABASE.",
    "no pg_hba.conf entry": "Its pg_hba.conf has to let this user in from here.",
    "does not exist": "Create it first (createdb, createuser), or correct the database URL.",
    "resolve host": "Check the host in the database URL.",
    "Connection refused": "Check that it runs, and host and port in the database URL.",
    "SSL": "Check sslmode in the database URL, and the server's certificate.",
    "too many clients": "Raise its max_connections, or let fewer programs connect.",
    "remaining connection slots": "Raise its max_connections, or let fewer programs connect.",
    "permission denied": "Its user needs all rights there: ALTER DATABASE name OWNER TO user.",
    "must be owner": "Another user has made its tables: connect as that one, or REASSIGN OWNED BY that one.",
    "during recovery": "It is a standby: connect to the primary.",
    "read-only transaction": "Connect to the primary; one that takes no writes may be a standby, or full.",
    "database system is": "It starts or stops; wait until it is there.",
    "invalid page": "A file of it is damaged: restore a backup (docs/operations.md), and check the disk.",
    "No space left": "The disk is full: free space or move the database to a larger disk.",
}
_ANY_ADVICE = "Check that it runs, that its address is right and that the disk has room; then try again."


def _advise(message: str) -> str:
    return next((advice for words, advice in _ADVICE.items() if words in message), _ANY_ADVICE)
