"""The console script: finds the command that was asked for, and says what went wrong in one sentence.

A command's file is imported when it is called: ``feddisco --help`` needs nothing but the table here.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import sys
from typing import Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from feddisco.commands.common import echo, make_app
from shared.problems import Problem

__all__ = ["COMMANDS", "Place", "app", "main"]


class Place(NamedTuple):
    """The file of ``feddisco/commands`` that a command is in, and its first sentence."""

    file: str
    sentence: str

    def load(self, name: str) -> Any:
        module = importlib.import_module(f"feddisco.commands.{self.file}")
        return typer.main.get_group(module.app).commands[name]


COMMANDS = {
    "version": Place("local", "Print the version."),
    "check-data": Place(
        "processes",
        "Say what a run would find here, what the site's policy says of it, and what would leave.",
    ),
    "demo": Place(
        "processes",
        "Run a coordinator, an evaluator and workers on this machine, by default on images of digits.",
    ),
    "simulate": Place(
        "local",
        "Run a configuration without a coordinator: the same models, bit for bit, with the kernels torch.",
    ),
    "sweep": Place(
        "local", "Simulate a configuration with several values of its settings, and over several seeds."
    ),
    "table": Place(
        "local",
        "Write result files of simulations as one table, with the settings in which the runs differ.",
    ),
    "plot": Place(
        "local",
        "Draw result files of simulations by round; seeds of like runs are a mean and its standard "
        "deviation.",
    ),
    "reproduce": Place(
        "local", "Run what a table of the paper still lacks, then write it beside the published figures."
    ),
    "predict": Place(
        "local",
        "Print what a model says of each image, row or text: its class and that class's probability.",
    ),
    "prune": Place(
        "runs", "Delete runs that ended long ago, except those that were put away (feddisco run archive)."
    ),
    "replay": Place("records", "Rebuild a round's model from its stored updates and compare the digests."),
    "verify": Place(
        "records",
        "Compare all that is stored with what was written: database, files, ledgers. Writes nothing.",
    ),
    "restore": Place(
        "records", "Make database and files what a snapshot holds, while the coordinator is stopped."
    ),
    "server": Place("processes", "Start the coordinator."),
    "worker": Place("processes", "Start a worker next to its data."),
    "run": Place("runs", "Create, inspect and control runs (admin)."),
    "clients": Place("people", "Invite, list and revoke clients (admin)."),
    "users": Place("people", "Tokens for people: add, list, renew, revoke (admin)."),
    "audit": Place("records", "The audit log: who did what, and who read what of a client."),
    "backup": Place("records", "Back up database and files: feddisco backup DIR."),
}
"""In the order of the help."""


class _Commands(TyperGroup):
    """Has every command of :data:`COMMANDS`, and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = COMMANDS.get(cmd_name)
        return None if place is None else place.load(cmd_name)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        if args and args[0] not in COMMANDS:  # what is suggested instead needs the names alone
            self.commands = self._outlines()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        outlines = self._outlines()
        limit = formatter.width - 6 - max(map(len, outlines))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit)) for name, command in outlines.items()]
            )

    def _outlines(self) -> dict[str, Any]:
        return {name: TyperCommand(name, help=place.sentence) for name, place in COMMANDS.items()}


app = make_app(
    name="feddisco",
    cls=_Commands,
    help="Federated learning with discrepancy-aware aggregation weights.",
    no_args_is_help=True,
)


@app.callback()
def _begin() -> None:
    """Typer wants an application to have something of its own."""


POSIX_ONLY = ("fcntl", "resource")
FOLDER_FAULTS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG),
)
"""What a person can change about a file or folder that was named; anything else is a fault of ours."""


def main() -> None:
    """Entry point; a problem ends with one sentence and exit code 2."""
    atexit.register(gc.freeze)  # the last collection would look through all that was imported
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"  # to find none it reads each installed package's metadata
    # httpx reads its own command line with it, which imports rich and Pygments: a sixth of `run list`
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        app()
    except Problem as problem:
        _fail(str(problem))
    except ModuleNotFoundError as missing:
        if missing.name not in POSIX_ONLY:
            raise
        _fail(
            "this command runs on Linux and macOS (Python's module "
            f"{missing.name} is missing here). On Windows, use WSL 2 or Docker."
        )
    except OSError as error:
        if error.filename is None or error.errno not in FOLDER_FAULTS:
            raise
        _fail(f"{error.filename}: {error.strerror}. Check the path, its owner and the space left.")


def _fail(sentence: str) -> NoReturn:
    echo(f"feddisco: {sentence}", err=True)
    sys.exit(2)
