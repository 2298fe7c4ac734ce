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
from collections.abc import Iterator
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg import sql

from server.database.migrations import head, upgrade
from server.database.tables import metadata

__all__ = ["NoPostgres", "Postgres", "own_cluster", "sqlite_template"]


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


@contextlib.contextmanager
def own_cluster() -> Iterator[Postgres]:
    """A PostgreSQL of our own in a temporary folder, without durability; raises :class:`NoPostgres`."""
    binaries, owner = _binaries(), _owner()
    # not pytest's folder: that belongs to root and is closed to others, and socket paths are short
    folder = Path(tempfile.mkdtemp(prefix="fdpg-"))
    try:
        if owner is not None:
            shutil.chown(folder, owner)
        with _server(binaries, owner, folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(binaries: Path, owner: str | None, folder: Path) -> Iterator[Postgres]:
    data, port = folder / "data", _free_port()
    initdb = [
        str(binaries / "initdb"),
        "-D",
        str(data),
        "-U",
        "feddisco",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    done = subprocess.run([*initdb, "--no-sync"], user=owner, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise NoPostgres(f"initdb failed: {done.stderr.strip()}")
    command = [
        str(binaries / "postgres"),
        "-D",
        str(data),
        "-p",
        str(port),
        "-k",
        str(folder),
        "-h",
        "127.0.0.1",
    ]
    for setting in ("fsync=off", "full_page_writes=off", "max_connections=200"):
        command += ["-c", setting]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, user=owner, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        server = Postgres(sa.URL.create("postgresql", "feddisco", None, "127.0.0.1", port, "postgres"))
        _wait(server, process, folder / "log")
        yield server
    finally:
        process.send_signal(signal.SIGINT)  # "fast shutdown"; its own session hears no Ctrl-C
        process.wait(timeout=30)


def _wait(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(server.url.render_as_string(hide_password=False)).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise NoPostgres(f"postgres did not start: {log.read_text(errors='replace')[-2000:]}")
