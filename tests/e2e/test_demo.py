"""``feddisco demo`` as somebody meets it who has just installed the program."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from tests.helpers.marked_process import MarkedProcess, running_module

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("demo")]


def demo(folder: Path, *arguments: str, **variables: str) -> AbstractContextManager[MarkedProcess]:
    return running_module("feddisco", "demo", *arguments, environment={"TMPDIR": str(folder), **variables})


def test_the_demo_trains_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--rounds", "3") as started:
        page = started.read_until(r"Status page: (http://127\.0\.0\.1:\d+/runs/demo)")[1]
        assert httpx.get(page).is_success
        assert started.wait() == 0, started.output
        assert started.alive() == []
    assert list(tmp_path.iterdir()) == []
    lines = started.output
    assert re.search(r"round +3/3 +accuracy +[5-9]\d\.\d\d %", lines), "a guess would have 10 %"
    assert lines.count("0.1515") == 5, "p_k of the five clients with two digits each"
    assert lines.count("0.2424") == 1, "(1/6 + 0.1) / 1.1, p_k of the client that sees all ten"
    assert re.search(r"│ all +│ +\d+\.\d\d % │", lines)
    assert re.search(r"Final model sha256 [0-9a-f]{64}", lines)


def test_the_demo_heeds_neither_proxy_nor_settings_of_the_shell(tmp_path: Path) -> None:
    """They are those of a federation that somebody runs beside it, whose database it must not touch."""
    other = tmp_path / "other.sqlite"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    variables = {
        **dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9"),
        "FEDDISCO_DATABASE_URL": f"sqlite:///{other}",
        "FEDDISCO_JOIN": "no join code",
        "FEDDISCO_ROLE": "evaluator",
        "FEDDISCO_SELF_SIGNED": "true",
        "FEDDISCO_STATE": str(tmp_path / "state"),
        "FEDDISCO_URL": "https://elsewhere.example",
        "feddisco_index": "7",
    }
    with demo(temporary, "--port", "0", "--rounds", "1", **variables) as started:
        assert started.wait() == 0, started.output
    assert "round   1/1" in started.output
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


@pytest.mark.slow
def test_the_secure_demo_ends_with_the_same_table_and_shows_its_steps(tmp_path: Path) -> None:
    with demo(tmp_path, "--port", "0", "--rounds", "2", "--secure") as started:
        assert started.wait() == 0, started.output
    lines = started.output
    assert re.search(r"round +2/2 +accuracy +[4-9]\d\.\d\d % ", lines), "a guess would have 10 %"
    assert re.search(r"│ all +│ +\d+\.\d\d % │", lines)
    for step in ("advertise", "share", "upload", "agree", "unmask"):
        assert re.search(rf"│ {step} +│ .* │ +3 │ +\d+\.\d\d │", lines), "the first sum and two rounds"
    assert re.search(r"│ N, their examples +│ +\d{4} │", lines)
    assert "d_k" not in lines
    own = re.findall(r"client-\d .*own weight (\d\.\d{4})", lines)
    assert sorted(own) == ["0.1515"] * 5 + ["0.2424"], "each from its own log alone"


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGTERM)],
    ids=lambda number: number.name,
)
def test_a_signal_ends_all_of_it(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--port", "0") as started:
        started.read_until(r"Status page: \S+")
        assert len(started.alive()) == 9
        assert len(started.forks()) == 7, "for all of them PyTorch is imported once"
        started.signal(number)
        assert started.wait() in (130, -signal.SIGINT)  # 130 to a shell; see tests/benchmarks
        assert started.alive() == []
    assert "Stopped." in started.output
    assert "Traceback" not in started.output
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with demo(tmp_path, "--port", str(port)) as started:
            assert started.wait() == 2
    assert re.fullmatch(rf"feddisco: Port {port} on 127\.0\.0\.1 cannot be used: .*\n", started.output)
    assert "make demo PORT=" in started.output


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with demo(tmp_path, "--port", "0", "--keep", str(tmp_path / "file" / "kept")) as started:
        assert started.wait() == 2
    assert re.fullmatch(r"feddisco: The demo cannot write its files: .*\n", started.output)
    assert "--keep FOLDER" in started.output
