"""A command imports what it needs and no more: counted by modules, since times depend on the machine."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from feddisco.main import COMMANDS
from tests.architecture.sources import ROOT

LIBRARIES = (
    "('torch', 'numpy', 'sqlalchemy', 'fastapi', 'alembic', 'cryptography', 'httpx', 'pydantic', 'pygments', "
    "'pydantic_settings', 'asyncio', 'yaml')"
)
PROGRAM = f"""
import contextlib, io, sys
from feddisco.main import main
for arguments in {{calls}}:
    sys.argv = ["feddisco", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    print(*(name for name in {LIBRARIES} if name in sys.modules), sep=",")
"""


def list_imported(*calls: list[str]) -> list[set[str]]:
    """The libraries that are there after each of the calls, which one fresh process makes in this order."""
    program = PROGRAM.replace("{calls}", repr(list(calls)))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return [set(line.split(",")) - {""} for line in done.stdout.splitlines()]


def test_a_command_imports_what_it_needs_and_no_more(tmp_path: Path) -> None:
    calls = [
        ["--help"],
        ["worker", "told", "--state", str(tmp_path)],
        ["runs"],  # no such command: what there is is said from the table
        ["server", "--help"],
        *(
            [*command, "--url", "http://127.0.0.1:1", "--admin-token-file", __file__]
            for command in (["run", "list"], ["run", "show", "demo"], ["clients", "list"])
        ),
    ]
    settings = {"pydantic", "pydantic_settings", "asyncio"}
    assert [found - {"yaml"} for found in list_imported(*calls[:4])] == [set(), settings, settings, settings]
    assert list_imported(*calls[4:]) == [{"pydantic", "httpx"}] * 3


def test_a_command_ends_without_a_last_look_through_all_that_was_imported() -> None:
    program = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
        "sys.argv = ['feddisco', '--help']\n"
        "from feddisco.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_each_command_what_the_command_says(name: str) -> None:
    place = COMMANDS[name]
    said = place.load(name).help
    assert " ".join(inspect.cleandoc(said).split("\n\n")[0].split()) == place.sentence


def test_the_table_has_every_command() -> None:
    files = {path.stem for path in (ROOT / "feddisco" / "commands").glob("*.py")}
    has_commands = files - {"__init__", "common", "connection"}
    assert has_commands == {place.file for place in COMMANDS.values()}
    for file in has_commands:
        module = __import__(f"feddisco.commands.{file}", fromlist=["app"])
        found = set(typer.main.get_group(module.app).commands)
        assert found == {name for name, place in COMMANDS.items() if place.file == file}
