"""Fresh databases for tests: SQLite files, and a PostgreSQL cluster that the tests start themselves.

Both are made by the migrations once a session; each test then gets a copy (of the file, or of the
template database), which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg import sql

from server.database.migrations import upgrade

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
        self._template = f"feddisco_template_{secrets.token_hex(4)}"
        self._ready = False

    def fresh(self) -> str:
        """The URL of a new database with the present schema."""
        if not self._ready:
            self._create(self._template)
            upgrade(self._at(self._template))
            self._ready = True
        return self._new(self._template)

    def empty(self) -> str:
        """The URL of a new database without tables."""
        return self._new("template0")

    def drop(self, url: str) -> None:
        name = sa.make_url(url).database or ""
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        if self._ready:
            self.drop(self._at(self._template))

    def _new(self, template: str) -> str:
        name = f"feddisco_test_{secrets.token_hex(6)}"
        self._create(name, template)
        return self._at(name)

    def _create(self, name: str, template: str = "template0") -> None:
        # STRATEGY file_copy would force two checkpoints; the default copies the few pages through the log
        self._run(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )

    def _at(self, name: str) -> str:
        return self.url.set(database=name).render_as_string(hide_password=False)

    def _run(self, statement: sql.Composed) -> None:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


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
    initdb = [binaries / "initdb", "-D", data, "-U", "feddisco", "-A", "trust", "-E", "UTF8", "--locale=C"]
    done = subprocess.run([*initdb, "--no-sync"], user=owner, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise NoPostgres(f"initdb failed: {done.stderr.strip()}")
    command = [binaries / "postgres", "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
    for setting in ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=200"):
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
        process.send_signal(subprocess.signal.SIGINT)  # "fast shutdown"; its own session hears no Ctrl-C
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
