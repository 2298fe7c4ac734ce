"""Settings are declared once: flags and documentation are made from the declaration."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from feddisco.flags import add_flags, format_default
from feddisco.main import app
from feddisco.settings import CONNECTION, ConsoleSettings
from server.settings import Settings
from shared.problems import InvalidConfiguration
from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]


def help_of(*command: str) -> str:
    """The help text without spaces, since it is wrapped, also behind hyphens."""
    answer = CliRunner().invoke(app, [*command, "--help"])
    assert answer.exit_code == 0
    return without_spaces(answer.output)


def without_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(
    ("command", "settings", "names"),
    [
        ("worker", WorkerSettings, tuple(WorkerSettings.model_fields)),
        ("server", Settings, ("host", "port", "data_folder", "database_url", "self_signed", "public_url")),
        ("server", Settings, ("open_pages", "insecure")),
        ("run list", ConsoleSettings, CONNECTION),
        ("replay", Settings, ("data_folder", "database_url")),
    ],
)
def test_each_flag_has_the_words_and_the_default_of_its_setting(
    command: str, settings: type[BaseModel], names: tuple[str, ...]
) -> None:
    text = help_of(*command.split())
    for name in names:
        field = settings.model_fields[name]
        described = f"{field.description}[default:{format_default(field)}]".removesuffix("[default:]")
        flag, words = f"--{name.replace('_', '-')}", re.escape(without_spaces(described))
        assert re.search(rf"{flag}(TEXT|PATH|NUMBER|[a-z0-9|]+)?{words}", text), name


class Sample(BaseSettings):
    """One setting of each kind."""

    file: Path | None = Field(None, description="A file.")
    size: int | None = Field(None, description="A size.")
    verbose: bool = Field(False, description="Say more.")


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], {"file": None, "size": None, "verbose": None}),
        (["--file", "a b", "--size", "3", "--verbose"], {"file": "a b", "size": "3", "verbose": True}),
    ],
)
def test_flags_carry_text_and_what_is_not_given_is_none(arguments: list[str], flags: dict[str, Any]) -> None:
    sample = typer.Typer()
    seen: dict[str, Any] = {}

    @sample.command()
    @add_flags(Sample)
    def command(word: str, **flags: Any) -> None:
        seen.update(flags, word=word)

    assert CliRunner().invoke(sample, ["first", *arguments]).exit_code == 0
    assert seen == {"word": "first", **flags}


def test_a_wrong_flag_is_refused_by_the_setting(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["worker", "--threads", "none", "--state", str(tmp_path)])
    assert isinstance(answer.exception, InvalidConfiguration)
    assert "--threads (FEDDISCO_THREADS): " in str(answer.exception)


def test_the_pages_of_settings_are_up_to_date() -> None:
    for path, text in runpy.run_path(str(ROOT / "docs" / "make_settings.py"))["rendered"]().items():
        assert path.read_text(encoding="utf-8") == text, f"run python docs/make_settings.py ({path.name})"


@pytest.mark.parametrize(("page", "settings"), [("coordinator", Settings), ("worker", WorkerSettings)])
def test_every_setting_is_described_on_its_page(page: str, settings: type[BaseSettings]) -> None:
    """Headings with a digit in the name were passed over."""
    text = " ".join((ROOT / "docs" / f"settings-{page}.md").read_text(encoding="utf-8").split())
    for name, field in settings.model_fields.items():
        assert f"`FEDDISCO_{name.upper()}` {field.description}" in text, name


def test_the_help_of_every_command_explains_each_argument_and_option() -> None:
    unexplained, pending = [], [("feddisco", typer.main.get_command(app))]
    while pending:
        words, command = pending.pop()
        pending += [(f"{words} {name}", sub) for name, sub in getattr(command, "commands", {}).items()]
        mute = [one.name for one in command.params if not str(getattr(one, "help", "") or "").strip()]
        unexplained += [f"{words}: {name}" for name in mute]
        if not command.help:
            unexplained.append(words)
    assert unexplained == []


def test_help_of_a_worker_needs_no_pytorch() -> None:
    code = (
        "import sys, feddisco.main as main\n"
        "sys.argv = ['feddisco', 'worker', '--help']\n"
        "try: main.main()\n"
        "finally: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
