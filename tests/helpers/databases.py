"""Fresh databases for tests: SQLite files, and a PostgreSQL cluster that the tests start themselves.

Both are made by the migrations once a session; each test then gets a copy of the file, or a database that
is emptied after the test and handed to the next.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg import sql

from server.database.migrations import head, upgrade
from server.database.tables import metadata

__all__ = ["NoPostgres", "OwnPostgres", "Postgres", "own_cluster", "sqlite_template"]


class NoPostgres(Exception):
    """Why there is no PostgreSQL to test with."""


def sqlite_template(folder: Path) -> Path:
    """A migrated, empty SQLite database without a write-ahead log: one file that can be copied."""
    path = folder / "template.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


class Postgres:
    """A server on which databases can be made: from a migrated template, or empty."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self._idle: list[str] = []

    def fresh(self) -> str:
        """The URL of an empty database with the present schema."""
        if self._idle:
            return self._idle.pop()
        url = self.empty()
        upgrade(url)
        return url

    def empty(self) -> str:
        """The URL of a new database without tables."""
        name = f"feddisco_test_{secrets.token_hex(6)}"
        self._run(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url.set(database=name).render_as_string(hide_password=False)

    def recycle(self, url: str) -> None:
        """Empties a database from ``fresh`` for the next test; drops it if the test changed its schema."""
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(_END_OTHERS)
                found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
                connection.execute(_EMPTY)
        except psycopg.errors.UndefinedTable:
            found = None
        if found == (head(),):
            self._idle.append(url)
        else:
            self.drop(url)

    def drop(self, url: str) -> None:
        name = sa.make_url(url).database or ""
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        while self._idle:
            self.drop(self._idle.pop())

    def _run(self, statement: sql.Composed) -> None:
        url = self.url.render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


_END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY = sql.SQL("TRUNCATE {} RESTART IDENTITY").format(
    sql.SQL(", ").join(map(sql.Identifier, metadata.tables))
)


def _binaries() -> Path:
    """The folder with initdb and postgres that belong together and run."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            for name in ("initdb", "postgres"):
                subprocess.run([folder / name, "--version"], check=True, capture_output=True)
            return folder
    raise NoPostgres("no initdb and postgres that run, neither on PATH nor in /usr/lib/postgresql/*/bin")


def _owner() -> str | None:
    """PostgreSQL refuses root: then the account made for it runs the server."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise NoPostgres("the tests run as root, and there is no account named postgres to run it") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class OwnPostgres(Postgres):
    """A server of the tests' own, which may be killed and started again on the same port and data."""

    def __init__(
        self, folder: Path, owner: str | None, binaries: Path, environment: Mapping[str, str]
    ) -> None:
        port = _free_port()
        super().__init__(sa.URL.create("postgresql", "feddisco", None, "127.0.0.1", port, "postgres"))
        self._folder = folder
        self._owner = owner
        self._environment = os.environ | environment
        self._command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder)]
        self._command += ["-p", str(port), "-h", "127.0.0.1"]
        for setting in ("fsync=off", "full_page_writes=off", "max_connections=200"):
            self._command += ["-c", setting]
        initdb = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "feddisco", "-A", "trust"]
        initdb += ["-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(initdb, user=owner, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise NoPostgres(f"initdb failed: {done.stderr.strip()}")

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                user=self._owner,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(300):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url.render_as_string(hide_password=False)).close()
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        told = (self._folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise NoPostgres(f"postgres did not start: {told}")

    def kill(self) -> None:
        """SIGKILL to the server and all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast shutdown"; its own session hears no Ctrl-C
            self._process.wait(timeout=30)


@contextlib.contextmanager
def own_cluster(environment: Mapping[str, str] | None = None) -> Iterator[OwnPostgres]:
    """A PostgreSQL of our own in a temporary folder, without durability; raises :class:`NoPostgres`."""
    binaries, owner = _binaries(), _owner()
    # not pytest's folder: that belongs to root and is closed to others, and socket paths are short
    folder = Path(tempfile.mkdtemp(prefix="fdpg-"))
    try:
        if owner is not None:
            shutil.chown(folder, owner)
        server = OwnPostgres(folder, owner, binaries, environment or {})
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
