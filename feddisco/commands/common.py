"""What the commands share: how they print and ask, and options that several of them have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from shared.texts import escape_controls

__all__ = [
    "Address",
    "Allow",
    "ByMetric",
    "ClientName",
    "Device",
    "Kernels",
    "PersonName",
    "Reason",
    "RunName",
    "WhichRound",
    "Yes",
    "confirm",
    "echo",
    "make_app",
]

Address = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster: local (this machine's cores), auto (the one started on this machine), "
        "HOST:PORT or ray://HOST:PORT. [default: RAY_ADDRESS, or local]"
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where to train: cpu, cuda, cuda:N, mps, or auto for the best available. A GPU needs the engine "
        "in-process and the kernels torch."
    ),
]
Kernels = Annotated[
    Literal["torch", "native"],
    typer.Option(
        help="How a client is computed: by PyTorch, or by our own kernels, which are faster for small "
        "networks, equal but for rounding, and built here by a C++ compiler at their first use."
    ),
]
WhichRound = Annotated[
    str | None,
    typer.Option(
        "--round", metavar="last|best|N", help="Which round's model; 0 is the initial one. [default: last]"
    ),
]
ByMetric = Annotated[
    str | None,
    typer.Option(
        "--metric", help="The score that says which round is best. [default: accuracy, or loss without one]"
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="PATTERN",
        help="Import paths that may be imported here, like 'ours.tasks:*'; may be given several times.",
    ),
]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
RunName = Annotated[str, typer.Argument(help="Name of the run, as the list of runs has it.")]
ClientName = Annotated[str, typer.Argument(help="Name of the client, as `feddisco clients list` has it.")]
PersonName = Annotated[str, typer.Argument(help="The person's name, as `feddisco users list` has it.")]
Reason = Annotated[str, typer.Option(help="Why, in a sentence: the logs and the run's page keep it.")]


def make_app(**options: Any) -> typer.Typer:
    """An application, or a group of commands, in the one style that all of them have."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **options)


def echo(text: str, *, err: bool = False) -> None:
    """Everything is printed by this: parts may be another's words, or a path that is no text at all."""
    typer.echo(escape_controls(text), err=err)


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes."""
    typer.confirm(escape_controls(question), abort=True, err=True)
