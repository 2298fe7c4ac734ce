"""Creating, looking at and controlling runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from feddisco.commands.common import (
    Allow,
    ByMetric,
    ClientName,
    Reason,
    RunName,
    WhichRound,
    Yes,
    confirm,
    echo,
    make_app,
)
from feddisco.commands.connection import calls_coordinator
from feddisco.settings import load as load_console_settings
from shared.texts import escape_controls

__all__ = ["app"]

app = make_app()
run_app = make_app(help="Create, inspect and control runs (admin).", no_args_is_help=True)
app.add_typer(run_app, name="run")


@run_app.command("create")
@calls_coordinator
def run_create(
    config: Annotated[str, typer.Argument(help="A YAML or JSON file, or `demo`.")],
    weights: Annotated[
        Path | None, typer.Option(help="Initial weights (safetensors), instead of fresh ones.")
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Do nothing if the run already exists.")
    ] = False,
    **flags: Any,
) -> None:
    """Create a run. Workers that have its task enrol by themselves."""
    from feddisco.admin import connect, create_run

    with connect(load_console_settings(flags)) as client:
        echo(create_run(client, config, weights=weights, if_absent=if_absent))


@run_app.command("list")
@calls_coordinator
def run_list(
    archived: Annotated[bool, typer.Option("--archived", help="Also those that were put away.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that were deleted instead.")] = False,
    search: Annotated[
        str, typer.Option(help="Words that are all in name, task, algorithm, weighting or tags.")
    ] = "",
    state: Annotated[str, typer.Option(help="Only runs of this status, like `completed`.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs that have this tag.")] = "",
    **flags: Any,
) -> None:
    """List runs: pinned ones first, then the newest."""
    from feddisco.admin import connect
    from feddisco.console import print_deletions, print_runs

    with connect(load_console_settings(flags)) as client:
        if deleted:
            print_deletions(client.deletions())
        else:
            found = client.find_runs(archived=archived, search=search, state=state, tag=tag)
            print_runs(found, are_all=not (search or state or tag))


@run_app.command("show")
@calls_coordinator
def run_show(run: RunName, **flags: Any) -> None:
    """Show a run: status, enrolments, accuracy and the newest ledger."""
    from feddisco.admin import connect
    from feddisco.console import print_run

    with connect(load_console_settings(flags)) as client:
        print_run(client.run(run), client.rounds(run))


@run_app.command("watch")
@calls_coordinator
def run_watch(run: RunName, **flags: Any) -> None:
    """Follow a run until it ends. The exit code is 0 only if it completed."""
    from feddisco.admin import connect
    from feddisco.console import follow

    with connect(load_console_settings(flags)) as client:
        raise typer.Exit(0 if follow(client, run) == "completed" else 1)


def _control(action: str, run: str, flags: Mapping[str, Any], reason: str = "") -> None:
    from feddisco.admin import connect, describe_state

    with connect(load_console_settings(flags)) as client:
        echo(describe_state(client.control(run, action, reason)))


@run_app.command("start")
@calls_coordinator
def run_start(run: RunName, **flags: Any) -> None:
    """Start a run now, with the trainers that are ready."""
    _control("start", run, flags)


@run_app.command("pause")
@calls_coordinator
def run_pause(run: RunName, reason: Reason = "", **flags: Any) -> None:
    """Pause a run: the open round continues, no further round opens."""
    _control("pause", run, flags, reason)


@run_app.command("resume")
@calls_coordinator
def run_resume(run: RunName, **flags: Any) -> None:
    """Resume a paused run."""
    _control("resume", run, flags)


@run_app.command("stop")
@calls_coordinator
def run_stop(run: RunName, reason: Reason = "", **flags: Any) -> None:
    """Stop a run for good. The open round is abandoned."""
    _control("stop", run, flags, reason)


@run_app.command("rewind")
@calls_coordinator
def run_rewind(
    run: RunName,
    round: Annotated[int, typer.Option(min=0, help="The round to go back to; 0: the initial model.")],
    reason: Reason = "",
    **flags: Any,
) -> None:
    """Go back to an earlier round's model and go on from there, in the same run."""
    from feddisco.admin import connect, describe_state

    with connect(load_console_settings(flags)) as client:
        view = client.rewind(run, round, reason)
        echo(describe_state(view, f"is back at round {view.completed_rounds}"))


@run_app.command("change")
@calls_coordinator
def run_change(
    run: RunName,
    rounds: Annotated[int | None, typer.Option(help="How many in all; not fewer than have begun.")] = None,
    quorum: Annotated[
        str | None, typer.Option(metavar="N|half", help="Updates without which a round is abandoned.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds for a round; the open one's deadline moves, too.")
    ] = None,
    waiting_deadline: Annotated[
        float | None, typer.Option(help="Seconds that it may wait without going on before it pauses.")
    ] = None,
    keep_updates: Annotated[
        str | None, typer.Option(metavar="N|all", help="Newest rounds whose updates are kept.")
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option(metavar="WORD,...", help="All that it is to have; `pinned` puts it first; '' for none."),
    ] = None,
    **flags: Any,
) -> None:
    """Change a run where that touches no past round."""
    from feddisco.admin import connect, describe_state, make_changes

    changes = make_changes(
        rounds=rounds,
        quorum=quorum,
        deadline=deadline,
        waiting_deadline=waiting_deadline,
        keep_updates=keep_updates,
        tags=tags,
    )
    with connect(load_console_settings(flags)) as client:
        view = client.change(run, changes)
        echo(describe_state(view, f"has revision {view.revision}"))


@run_app.command("archive")
@calls_coordinator
def run_archive(
    run: RunName,
    undo: Annotated[bool, typer.Option("--undo", help="List it again.")] = False,
    **flags: Any,
) -> None:
    """Put an ended run away: it is no longer listed, and not pruned; nothing of it is lost."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.control(run, "unarchive" if undo else "archive")
        echo(f"{run} is listed again." if undo else f"{run} is put away: feddisco run list --archived.")


@run_app.command("delete")
@calls_coordinator
def run_delete(run: RunName, reason: Reason = "", yes: Yes = False, **flags: Any) -> None:
    """Delete an ended run for good, with its files. A record of it is kept."""
    from feddisco.admin import connect
    from feddisco.ending import delete_runs, describe_run

    with connect(load_console_settings(flags)) as client:
        echo(describe_run(client.run(run)))
        for sentence in delete_runs(client, [run], reason, None if yes else confirm):
            echo(sentence)


@app.command("prune")
@calls_coordinator
def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="How long ago a run has ended at least: 90d, 12h, 4w.")
    ],
    yes: Yes = False,
    **flags: Any,
) -> None:
    """Delete runs that ended long ago, except those that were put away (feddisco run archive)."""
    from feddisco.admin import connect
    from feddisco.ending import delete_runs, describe_run, list_older, parse_age
    from server.clock import utc_now

    age = parse_age(older_than)
    with connect(load_console_settings(flags)) as client:
        found = list_older(client, age, utc_now())
        for run in found:
            echo(describe_run(run))
        if not found:
            echo(f"No run ended more than {older_than} ago, or they are put away.")
            return
        names = [run.run for run in found]
        reason = f"pruned: older than {older_than}"
        for sentence in delete_runs(client, names, reason, None if yes else confirm):
            echo(sentence)


@run_app.command("approve")
@calls_coordinator
def run_approve(
    run: RunName,
    clients: Annotated[
        list[str] | None, typer.Argument(help="Clients to let in. Without any, those that wait are listed.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=0, help="Approve this size only. Without it, the one declared.")
    ] = None,
    **flags: Any,
) -> None:
    """Let clients into a run whose sizes wait for approval."""
    from feddisco.admin import approve, connect, list_waiting
    from feddisco.console import print_waiting

    with connect(load_console_settings(flags)) as client:
        if not clients:
            print_waiting(run, list_waiting(client, run))
            return
        for sentence in approve(client, run, clients, examples):
            echo(sentence)


@run_app.command("refuse")
@calls_coordinator
def run_refuse(run: RunName, client_id: ClientName, reason: Reason = "", **flags: Any) -> None:
    """Take a client out of a run, or keep it out. If it comes again, it waits for approval."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.refuse(run, client_id, reason)
        echo(f"{client_id} takes no part in {run}.")


@run_app.command("model")
@calls_coordinator
def run_model(
    run: RunName,
    out: Annotated[Path, typer.Argument(help="File to write (safetensors).")],
    round: WhichRound = None,
    metric: ByMetric = None,
    allow: Allow = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="The tensors alone, byte by byte as the coordinator keeps them.")
    ] = False,
    **flags: Any,
) -> None:
    """Download a run's model, with what one needs to use it: `feddisco predict FILE image.png`."""
    from feddisco.admin import connect
    from feddisco.models import fetch_model

    with connect(load_console_settings(flags)) as client:
        said = fetch_model(client, run, out, round=round, metric=metric, allow=allow or (), plain=plain)
        echo(said)


@run_app.command("export")
@calls_coordinator
def run_export(
    run: RunName,
    format: Annotated[
        Literal["safetensors", "torchscript", "onnx"],
        typer.Option("--format", help="torchscript and onnx have the preprocessing inside."),
    ] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="File to write. [default: RUN and the format's]")] = None,
    round: WhichRound = None,
    metric: ByMetric = None,
    allow: Allow = None,
    **flags: Any,
) -> None:
    """Write a run's model for other programs, and its labels beside it."""
    from feddisco.admin import connect
    from feddisco.exporting import SUFFIXES, fetch_export

    path = out or Path(run + SUFFIXES[format])
    with connect(load_console_settings(flags)) as client:
        said = fetch_export(client, run, path, format, round=round, metric=metric, allow=allow or ())
        typer.echo(escape_controls(said))


@run_app.command("card")
@calls_coordinator
def run_card(
    run: RunName,
    out: Annotated[Path | None, typer.Option(help="File to write. Without it, the terminal.")] = None,
    round: WhichRound = None,
    metric: ByMetric = None,
    allow: Allow = None,
    **flags: Any,
) -> None:
    """Write a model card in Markdown: what the model is, how it was made and what it scored."""
    from feddisco.admin import connect
    from feddisco.cards import fetch_card
    from feddisco.models import check_is_file
    from shared.files import replace_file

    if out is not None:
        check_is_file(out)
    with connect(load_console_settings(flags)) as client:
        card = fetch_card(client, run, round, metric, allow or ())
    if out is None:
        typer.echo(card)
    else:
        replace_file(out, card.encode())
        typer.echo(str(out))
