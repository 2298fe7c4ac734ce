"""The console script's surface: help without PyTorch, wrong flags in one sentence."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddisco.main import app
from shared.problems import InvalidConfiguration


def test_the_version_is_the_packages() -> None:
    answer = CliRunner().invoke(app, ["version"])
    assert (answer.exit_code, answer.output) == (0, f"feddisco {version('feddisco')}\n")


@pytest.mark.parametrize(
    "command",
    [
        ["server"],
        ["server", "migrate"],
        ["worker"],
        ["demo"],
        ["simulate"],
        ["replay"],
        *(["run", verb] for verb in ("create", "list", "show", "watch", "start", "pause", "resume", "stop")),
        *(["run", verb] for verb in ("model", "export", "card", "approve", "refuse", "rewind")),
        *(["run", verb] for verb in ("archive", "change", "delete")),
        ["prune"],
        ["predict"],
        *(["clients", verb] for verb in ("erase", "invite", "list", "revoke")),
    ],
    ids=" ".join,
)
def test_every_command_explains_itself(command: list[str]) -> None:
    answer = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "120"})
    assert answer.exit_code == 0
    assert "Usage:" in answer.output


def test_looking_around_needs_no_pytorch() -> None:
    code = "import sys, feddisco.main, feddisco.admin, feddisco.console; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["server", "--port", "70000", "--data-folder", str(tmp_path)])
    assert isinstance(answer.exception, InvalidConfiguration)
    assert "--port (FEDDISCO_PORT): " in str(answer.exception)
    assert "65535" in str(answer.exception)


def test_a_misspelt_variable_of_a_worker_is_named(tmp_path: Path) -> None:
    variables = {"FEDDISCO_DEVISE": "cpu", "FEDDISCO_PORT": "1", "FEDDISCO_URL": ""}
    answer = CliRunner().invoke(app, ["worker", "--state", str(tmp_path)], env=variables)
    assert answer.exit_code == 2  # no coordinator is given
    assert answer.stderr.count("is it misspelt?") == 1
    assert "FEDDISCO_DEVISE" in answer.stderr


def test_a_problem_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "feddisco", "simulate", str(tmp_path / "none.yaml"), "--out", "x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"feddisco: The configuration {tmp_path / 'none.yaml'} cannot be read: No such file or directory.\n"
    )


def test_a_closed_output_is_no_fault() -> None:
    command = f"{sys.executable} -c 'import feddisco.console as console; console.say(str(1))' >&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
