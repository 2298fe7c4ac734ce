"""Starting and ending: what can be wrong is said in one sentence, and SIGTERM is a clean end."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy as sa
import trustme

from server.blobs.disk import MARK
from server.clock import utc_now
from server.main import _say_certificate, _say_who_reads, check_storage, migrate, serve
from server.ownership import owning
from server.settings import Settings
from tests.helpers.databases import Postgres
from tests.helpers.live_coordinator import ADMIN, ROOT, live, process, settings_for


@pytest.fixture(autouse=True)
def loggers_left_as_they_were() -> Iterator[None]:
    """``serve`` sets up logging for the whole process: later tests would write to a stream that is closed."""
    yield
    for name in ("feddisco", "uvicorn", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def refusal(settings: Settings, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``serve`` says when it cannot start; a data folder that was not there is not there then."""
    had_folder = settings.data_folder.exists()
    assert serve(settings) == 2
    assert settings.data_folder.exists() == had_folder
    said = capsys.readouterr().err
    assert said.startswith("feddisco server: ")
    assert "Traceback" not in said
    return said


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refusal(Settings(data_folder=tmp_path / "new" / "data", port=port), capsys)
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said


def test_a_data_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "data folder" in refusal(Settings(data_folder=tmp_path / "file", port=0), capsys)


def test_a_certificate_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = tmp_path / "lost.pem"
    said = refusal(
        Settings(data_folder=tmp_path / "data", port=0, tls_certificate=lost, tls_key=lost), capsys
    )
    assert str(lost) in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "coordinator.example", "192.0.2.1"])
def test_no_tls_beyond_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str) -> None:
    said = refusal(Settings(data_folder=tmp_path / "data", port=0, host=host), capsys)
    assert f"other machines reach {host}" in said
    assert "--insecure" in said
    assert not (tmp_path / "data").exists(), "refused before anything was done"


def test_what_is_open_is_said_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said(**settings: Any) -> dict[str, str]:
        caplog.clear()
        with caplog.at_level("INFO", "feddisco"):
            _say_who_reads(Settings(data_folder=tmp_path, **settings), "http://here:8000")
        return {record.levelname: record.getMessage() for record in caplog.records}

    assert (
        said()["INFO"]
        == f"reading from other machines needs a token: the viewer token is in {tmp_path}/viewer-token"
    )
    assert said(open_pages=False)["INFO"].startswith("reading needs a token")
    opened = said(open_pages=True)
    assert list(opened) == ["WARNING"]
    assert opened["WARNING"].startswith("OPEN PAGES: whoever reaches http://here:8000 reads all clients'")
    exposed = said(host="0.0.0.0", insecure=True)
    assert exposed["WARNING"].startswith("INSECURE: every token and update travels")
    assert "viewer-token" in exposed["INFO"]


@pytest.mark.parametrize(
    ("file", "setting", "said"),
    [
        ("admin-token", "viewer_token", "the admin token in {} is also that of the viewers"),
        ("viewer-token", "admin_token", "the admin token FEDDISCO_ADMIN_TOKEN is also that of the viewers"),
        ("admin-token", "join_token", "the admin token in {} is also that of a join code"),
        ("viewer-token", "join_token", "the viewer token in {} is also that of a join code"),
    ],
)
def test_a_token_in_a_file_is_for_one_kind_of_people(
    file: str, setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the admin token as join code every site would be an admin."""
    data, token = tmp_path / "data", f"{ADMIN}-for-everybody"
    data.mkdir()
    (data / file).write_text(f"{token}\n")
    told = refusal(Settings.model_validate({"data_folder": data, "port": 0, setting: token}), capsys)
    assert said.format(data / file) in told
    assert token not in told


def test_a_token_in_a_file_is_nobodys_who_has_come_before(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Join codes, clients and people are known by their hashes, also those of before."""
    with live(database_url, tmp_path / "data") as at:
        site = at.site("north").http.headers["Authorization"].removeprefix("Bearer ")
        maria = at.admin.post("/users", json={"name": "maria", "role": "viewer"}).json()["token"]
        code = at.admin.post("/join-tokens", json={"uses": 1}).json()
        assert at.admin.delete(f"/join-tokens/{code['id']}").status_code == 204
    settings = Settings(data_folder=tmp_path / "data", database_url=database_url, port=0)
    for token, holder in ((site, "client 'north'"), (maria, "user 'maria'"), (code["token"], "a join code")):
        (tmp_path / "data" / "admin-token").write_text(token)
        told = refusal(settings, capsys)
        assert f"is also that of {holder}" in told
        assert token not in told


def test_a_database_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://somebody:secret-word@127.0.0.1:1/nowhere"
    settings = settings_for(url, tmp_path / "new" / "data").model_copy(update={"self_signed": True})
    said = refusal(settings, capsys)
    assert migrate(settings) == 2
    assert list(tmp_path.iterdir()) == []
    assert "does not answer" in said
    assert said.endswith("Check that it runs, and host and port in the database URL.\n")
    assert "secret-word" not in said


def test_a_postgresql_database_that_is_not_there(
    postgres: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = sa.make_url(postgres.empty())
    try:
        url = there.set(database="nowhere").render_as_string(hide_password=False)
        said = refusal(settings_for(url, tmp_path), capsys)
        assert 'database "nowhere" does not exist. Create it first' in said
    finally:
        postgres.drop(there.render_as_string(hide_password=False))


def test_a_certificate_that_is_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(data_folder=tmp_path / "data", tls_certificate=tmp_path, tls_key=tmp_path)
    assert f"tls_certificate: {tmp_path} is a folder, not a file" in refusal(settings, capsys)


def test_a_certificate_without_its_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FEDDISCO_TLS_CERTIFICATE and FEDDISCO_TLS_KEY are given together"):
        Settings(data_folder=tmp_path, tls_certificate=tmp_path / "certificate.pem")


def test_postgresql_is_migrated_by_its_operator_only(
    postgres: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.empty()
    try:
        settings = settings_for(url, tmp_path / "data")
        assert "feddisco server migrate" in refusal(settings, capsys)
        assert migrate(settings) == 0
        assert migrate(settings) == 0, "again is fine"
    finally:
        postgres.drop(url)


def test_a_database_of_another_user_is_told_with_what_to_do(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Since PostgreSQL 15 a database that is only granted to a user lets it make no tables."""
    url, role = postgres.empty(), f"plain_{secrets.token_hex(4)}"
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role}")
            connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        options = f"?options=-c%20role%3D{role}"
        assert migrate(settings_for(url + options, tmp_path)) == 2
        assert "permission denied for schema public. Its user needs all rights" in capsys.readouterr().err
        assert migrate(settings_for(url, tmp_path)) == 0
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        assert "permission denied for table installation" in refusal(
            settings_for(url + options, tmp_path), capsys
        )
    finally:
        postgres.drop(url)
        with psycopg.connect(postgres.url.render_as_string(False), autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_letter_is_refused(
    encoding: str, postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQL_ASCII is what a cluster made without a locale has."""
    name = f"feddisco_test_{secrets.token_hex(6)}"
    url = postgres.url.set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(postgres.url.render_as_string(False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    try:
        assert migrate(settings_for(url, tmp_path)) == 2
        assert f"is {encoding}, not UTF8. Create another: createdb" in capsys.readouterr().err
        assert "feddisco server migrate" in refusal(settings_for(url, tmp_path), capsys)
    finally:
        postgres.drop(url)


@pytest.mark.parametrize("named", ["data/own.sqlite", "link/own.sqlite"])
def test_a_sqlite_database_belongs_to_one_process(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    settings = settings_for(f"sqlite:///{tmp_path / named}", tmp_path / "elsewhere")
    with owning(tmp_path / "data" / "own.sqlite", "a coordinator", utc_now()):
        said = refusal(settings, capsys)
        assert f"a coordinator, process {os.getpid()} on {socket.gethostname()}, since 2" in said
        assert migrate(settings) == 2
        assert "belongs to another process" in capsys.readouterr().err
    assert migrate(settings) == 0, "the lock goes with its holder"


def test_a_blob_folder_belongs_to_one_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [settings_for(f"sqlite:///{tmp_path / name}", tmp_path / "data") for name in ("a", "b")]
    check_storage(settings[0], migrate=False)
    check_storage(settings[0], migrate=False)
    said = refusal(settings[1], capsys)
    assert f"{tmp_path / 'data' / 'blobs'} belongs to database" in said
    (tmp_path / "data" / "blobs" / MARK).unlink()
    check_storage(settings[1], migrate=False)
    assert "belongs to database" in refusal(settings[0], capsys)


def test_an_empty_blob_folder_is_not_taken_for_the_one_with_the_files(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A volume that is not mounted, or a second coordinator with a folder of its own."""
    with live(database_url, tmp_path / "data") as at:
        made = at.create()
    blobs = at.coordinator.blobs
    path = blobs.path(made["initial_model"])
    path.rename(tmp_path / "elsewhere")
    settings = settings_for(database_url, tmp_path / "data")
    assert "is empty, but the database has recorded 1 files" in refusal(settings, capsys)
    (tmp_path / "elsewhere").rename(path)
    check_storage(settings, migrate=False)
    path.unlink()
    check_storage(settings, migrate=False)  # marked: what is missing is said where it is needed


def test_a_database_in_a_folder_that_is_not_there_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(f"sqlite:///{tmp_path}/lost/own.sqlite", tmp_path / "data")
    assert "Create the folder" in refusal(settings, capsys)
    assert list(tmp_path.iterdir()) == []


class Process:
    """A coordinator's process; its stderr is read in the background of waiting for lines."""

    def __init__(self, folder: Path, database_url: str, **settings: Any) -> None:
        self.popen: subprocess.Popen[str] = process(folder, database_url, **settings)
        self.lines: list[str] = []

    def line(self, wanted: str) -> str:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if wanted in line:
                return line
        raise AssertionError(f"no {wanted!r} in {self.lines}")

    def address(self) -> str:
        found = re.search(r"https?://\S+", self.line("coordinator on"))
        assert found is not None
        return found[0].strip('"}')

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        assert self.popen.stderr is not None
        self.lines += self.popen.stderr.readlines()
        return self.popen.wait(timeout=30)


@pytest.fixture
def start(tmp_path: Path) -> Any:
    started: list[Process] = []

    def one(**settings: Any) -> Process:
        url = settings.pop("database_url", f"sqlite:///{tmp_path / 'data' / 'own.sqlite'}")
        started.append(Process(tmp_path / "data", url, **settings))
        return started[-1]

    yield one
    for running in started:
        if running.popen.poll() is None:
            running.popen.kill()
        running.popen.wait()
        assert running.popen.stderr is not None
        running.popen.stderr.close()


def until_ready(url: str, verify: Any = True) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/readyz", verify=verify).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("it never was ready")


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_end_also_for_those_who_wait(start: Callable[..., Process], number: int) -> None:
    running = start(admin_token=None)
    url = running.address()
    told = running.line("admin token is in")
    until_ready(url)
    path = Path(told.split("admin token is in ")[1].strip())
    token = path.read_text().strip()
    assert httpx.get(f"{url}/api/v1/clients", headers={"Authorization": f"Bearer {token}"}).json() == []
    with httpx.stream("GET", f"{url}/api/v1/events") as stream:
        assert stream.status_code == 200
        began = time.monotonic()
        assert running.end(number) == 0
        assert time.monotonic() - began < 15
    assert not any(token in line for line in running.lines)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_first_request_is_heard(tmp_path: Path, number: int) -> None:
    """Just before uvicorn listens for signals: the coordinator ran on as if none had come."""
    program = f"""
import signal, sys
from server.main import Server, serve
from server.settings import Settings

run = Server.run

def run_late(server, sockets):
    signal.raise_signal({int(number)})
    run(server, sockets)

Server.run = run_late
sys.exit(serve(Settings(data_folder={str(tmp_path / "data")!r}, port=0)))
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.long
@pytest.mark.e2e
def test_a_second_coordinator_on_a_sqlite_database_does_not_start_until_the_first_is_killed(
    start: Callable[..., Process],
) -> None:
    first = start()
    first.address()
    second = start()
    assert f"process {first.popen.pid} on" in second.line("belongs to another process")
    assert second.popen.wait(timeout=30) == 2
    assert not any("Traceback" in line for line in second.lines)
    first.end(signal.SIGKILL)
    third = start()
    until_ready(third.address())
    assert third.end() == 0


@pytest.mark.e2e
def test_tls_and_json_logs(start: Callable[..., Process], tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key, certificate, trusted = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "ca.pem"
    issued.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(trusted)
    running = start(tls_certificate=str(certificate), tls_key=str(key), log_format="json", access_log=True)
    url = running.address()
    assert url.startswith("https://")
    context = ssl.create_default_context(cafile=str(trusted))
    until_ready(url, context)
    answer = httpx.get(f"{url}/api/v1/clients", verify=context, headers={"Authorization": f"Bearer {ADMIN}"})
    assert answer.status_code == 200
    assert running.end() == 0
    entries = [json.loads(line) for line in running.lines]
    assert any("/api/v1/clients" in entry["message"] for entry in entries), "access log"
    assert not any(ADMIN in entry["message"] for entry in entries)


def test_the_process_starts_without_pytorch() -> None:
    program = "import sys, server.app, server.main; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_a_certificate_that_is_not_valid_now_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, path = trustme.CA(), tmp_path / "certificate.pem"
    for year, warned in ((2025, True), (2100, False)):
        first, last = (dt.datetime(number, 1, 1, tzinfo=dt.UTC) for number in (2024, year))
        leaf = authority.issue_cert("localhost", not_before=first, not_after=last)
        path.write_bytes(leaf.cert_chain_pems[0].bytes())
        caplog.clear()
        _say_certificate(path)
        assert ("from 2024-01-01 to 2025-01-01 only" in caplog.text) == warned
