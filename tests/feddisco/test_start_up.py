"""What is wrong on the machine that starts a command: one sentence, exit code 2, never a traceback."""

from __future__ import annotations

import datetime as dt
import io
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

from feddisco import console
from feddisco.main import main
from shared.schemas import RunStatus, RunSummary
from tests.helpers.http_servers import Answer, closed_port, http_server
from worker.client import CoordinatorClient
from worker.progress import Reporter

ELSEWHERE = "https://coordinator.example:8000"


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["feddisco", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


ADMIN = [
    ("run", "create", "demo"),
    ("run", "list"),
    ("run", "show", "demo"),
    ("run", "watch", "demo"),
    ("run", "start", "demo"),
    ("run", "pause", "demo"),
    ("run", "resume", "demo"),
    ("run", "stop", "demo"),
    ("run", "model", "demo", "out.safetensors"),
    ("clients", "invite"),
    ("clients", "list"),
    ("clients", "revoke", "anna"),
]


# ---------------------------------------------------------------- proxies in the environment


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:1080/"),
        ("ALL_PROXY", "socks5h://127.0.0.1:1080"),
        ("all_proxy", "socks://127.0.0.1:1080/"),
        ("HTTP_PROXY", "127.0.0.1:port"),
        ("HTTP_PROXY", "http://[::1"),
        ("HTTPS_PROXY", "ftp://proxy.example"),
        ("HTTPS_PROXY", "http://"),
        ("HTTPS_PROXY", "proxy\x01"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "a")
    commands: list[tuple[str, ...]] = [*ADMIN, ("worker", "--state", str(tmp_path / "state"))]
    for command in commands if variable == "ALL_PROXY" else commands[-2:]:
        run_command(monkeypatch, *command, "--url", ELSEWHERE)
        said = capsys.readouterr().err
        assert f"the variable {variable.upper()}_PROXY".replace("_PROXY_PROXY", "_PROXY") in said
        assert "http://proxy.example:3128" in said


def test_a_proxy_with_a_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://anna:secret@proxy.example")
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "a")
    run_command(monkeypatch, "run", "list", "--url", ELSEWHERE)
    said = capsys.readouterr().err
    assert "HTTPS_PROXY" in said
    assert "secret" not in said


@pytest.mark.parametrize("scheme", ["socks", "http"])
def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    proxy = f"{scheme}://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with http_server(lambda _: Answer(200, b"[]")) as url:
        for address in (url, url.replace("127.0.0.1", "localhost")):
            with CoordinatorClient(address) as client:
                assert client.runs() == []


# ---------------------------------------------------------------- the state folder


def _make_file(path: Path) -> Path:
    path.write_text("")
    return path


def test_a_state_folder_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("lock", "credential.json", "registration.json"):
        (tmp_path / name / name).mkdir(parents=True)
    for folder in (
        _make_file(tmp_path / "file"),
        tmp_path / "file" / "below",
        Path("/proc/nothing/state"),
        Path("/sys/state"),
        tmp_path / ("x" * 300),
        *(tmp_path / name for name in ("lock", "credential.json", "registration.json")),
    ):
        for slots in ((), ("--state-slots",)):
            if slots and folder.name.endswith(("lock", ".json")):
                continue  # its slots are other folders
            url = f"http://127.0.0.1:{closed_port()}"
            run_command(monkeypatch, "worker", "--url", url, "--state", folder, "--join-token", "a", *slots)
            said = capsys.readouterr().err
            assert f"the state folder {folder}" in said
            assert "--state" in said


def test_a_folder_where_a_file_is_wanted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    run_command(
        monkeypatch,
        *("worker", "--url", "http://127.0.0.1:1", "--state", state, "--join-token-file", tmp_path),
    )
    assert str(tmp_path) in capsys.readouterr().err


# ---------------------------------------------------------------- certificates


def test_files_for_tls_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    certificate, key, other = (tmp_path / name for name in ("cert.pem", "key.pem", "other.pem"))
    ours.cert_chain_pems[0].write_to_path(str(certificate))
    ours.private_key_pem.write_to_path(str(key))
    theirs.private_key_pem.write_to_path(str(other))
    der = tmp_path / "cert.der"
    der.write_bytes(b"\x30\x82\x01\x0a\x02\x82")
    cut = tmp_path / "cut.pem"
    cut.write_bytes(key.read_bytes()[:80])
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = [tmp_path / "pkcs8.pem", tmp_path / "traditional.pem"]
    for path, form in zip(locked, (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL), strict=True):
        path.write_bytes(
            private.private_bytes(Encoding.PEM, form, serialization.BestAvailableEncryption(b"secret"))
        )
    monkeypatch.setenv("FEDDISCO_DATA_FOLDER", str(tmp_path / "data"))
    for first, second, words in (
        *((certificate, path, "the key is encrypted; give it without a passphrase") for path in locked),
        (certificate, other, "the key belongs to another certificate"),
        (der, key, f"tls_certificate: {der} holds no certificate in PEM"),
        (certificate, certificate, f"tls_key: {certificate} holds no private key in PEM"),
        (key, certificate, f"tls_certificate: {key} holds no certificate in PEM"),
        (certificate, cut, "a file is damaged"),
        (certificate, tmp_path / "none.pem", "tls_key: there is no file"),
        (tmp_path, key, f"tls_certificate: {tmp_path} is a folder, not a file"),
    ):
        monkeypatch.setenv("FEDDISCO_TLS_CERTIFICATE", str(first))
        monkeypatch.setenv("FEDDISCO_TLS_KEY", str(second))
        run_command(monkeypatch, "server", "--port", "0")
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said


def test_every_command_that_calls_a_coordinator_takes_ca_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "a")
    nothing = _make_file(tmp_path / "nothing.pem")
    for command in ADMIN:
        run_command(monkeypatch, *command, "--url", "https://127.0.0.1:1", "--ca-file", nothing)
        assert f"--ca-file {nothing} cannot be read as certificates" in capsys.readouterr().err, command


def test_nothing_is_sent_to_another_machine_without_tls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked for an address")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "a")
    state = ("--state", str(tmp_path / "state"))
    worker = ("worker", *state, "--join-token", "a")
    for command in (*ADMIN, worker):
        for url in ("http://coordinator.example:8000", "http://192.0.2.1:8000", "http://0.0.0.0:8000"):
            run_command(monkeypatch, *command, "--url", url)
            said = capsys.readouterr().err
            assert f"{url} is another machine" in said, command
            assert "nothing was sent" in said
            assert "--insecure" in said
    for command in (("run", "list"), worker):
        with pytest.raises(AssertionError, match="asked for an address"):
            run_command(monkeypatch, *command, "--url", "http://coordinator.example:8000", "--insecure")


# ---------------------------------------------------------------- Windows


@pytest.mark.parametrize(("module", "command"), [("fcntl", "worker"), ("resource", "server")])
def test_a_system_without_posix_is_told_what_is_supported(module: str, command: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['feddisco', {command!r}]\n"
        "from feddisco.main import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2
    assert "runs on Linux and macOS" in ended.stderr
    assert "WSL 2 or Docker" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


# ---------------------------------------------------------------- what others wrote


def test_what_others_wrote_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[/bold] [link=x]a[/link] \x1b[31mred\x1b]0;title\x07 \x9b2J \u202eturned"
    summary = RunSummary(
        run="demo",
        status=RunStatus.PAUSED,
        reason=hostile,
        task=hostile,
        algorithm="fedavg",
        weighting="sizes",
        rounds=1,
        completed_rounds=0,
        created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        finished_at=None,
        accuracy=None,
    )
    console.print_runs([summary])
    console.say(hostile)
    stream = io.StringIO()
    Reporter(stream, lambda: dt.datetime.now(dt.UTC), terminal=True).say(hostile)
    for shown in (capsys.readouterr().out, stream.getvalue()):
        assert "[/bold]" in shown
        assert "\\x1b" in shown
        assert not set("\x1b\x07\x9b\u202e") & set(shown)
