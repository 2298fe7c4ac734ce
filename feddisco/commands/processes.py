"""Coordinator, worker and demo as processes, and what a site can look at by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feddisco.commands.common import Allow, ByMetric, RunName, WhichRound, echo, make_app
from feddisco.commands.connection import load_coordinator_settings
from feddisco.flags import add_flags
from feddisco.settings import ConsoleSettings
from server.settings import Settings, unknown_variables
from shared.problems import InvalidConfiguration
from worker.settings import WorkerSettings
from worker.settings import load as load_worker_settings

__all__ = ["app"]

app = make_app()
server_app = make_app(invoke_without_command=True)
worker_app = make_app(invoke_without_command=True)
app.add_typer(server_app, name="server")
app.add_typer(worker_app, name="worker")

OTHER_VARIABLES = [
    f"FEDDISCO_{name.upper()}" for name in (*WorkerSettings.model_fields, *ConsoleSettings.model_fields)
]
"""Of the worker and of the operator's commands."""


@server_app.callback()
@add_flags(
    Settings,
    *("host", "port", "data_folder", "database_url", "self_signed", "public_url", "open_pages", "insecure"),
)
def server(context: typer.Context, **flags: Any) -> None:
    """Start the coordinator.

    Every setting is a variable FEDDISCO_*, see docs/settings-coordinator.md; those below are also flags.
    """
    if context.invoked_subcommand is not None:
        context.obj = flags
        return
    from server.main import serve

    raise typer.Exit(serve(load_coordinator_settings(flags), known_elsewhere=OTHER_VARIABLES))


@server_app.command()
def migrate(context: typer.Context) -> None:
    """Upgrade the database's schema to this program's version."""
    from server.main import migrate as run_migrations

    raise typer.Exit(run_migrations(load_coordinator_settings(context.obj)))


@worker_app.callback()
@add_flags(WorkerSettings)
def worker(context: typer.Context, **flags: Any) -> None:
    """Start a worker next to its data.

    Every flag is also a variable: --ca-file is FEDDISCO_CA_FILE. The flag wins. See docs/settings-worker.md.
    """
    if context.invoked_subcommand is not None:
        context.obj = flags
        return
    from worker.main import run as run_worker

    for name in unknown_variables(OTHER_VARIABLES):
        echo(f"feddisco worker: {name} is not a setting of the worker; is it misspelt?", err=True)
    raise typer.Exit(run_worker(load_worker_settings(flags)))


@worker_app.command("leave")
@add_flags(WorkerSettings, "url", "state", "ca_file", "insecure")
def worker_leave(context: typer.Context, run: RunName, **flags: Any) -> None:
    """Leave a run, with the credential in the state folder; the worker itself may go on."""
    from worker.main import leave

    given = {name: value for name, value in flags.items() if value is not None}
    echo(leave(load_worker_settings(context.obj | given), run))


@worker_app.command("model")
@add_flags(WorkerSettings, "url", "state", "ca_file", "insecure")
def worker_model(
    context: typer.Context,
    run: RunName,
    out: Annotated[Path, typer.Argument(help="File to write (safetensors).")],
    round: WhichRound = None,
    metric: ByMetric = None,
    allow: Allow = None,
    **flags: Any,
) -> None:
    """Download the model of a run that this site takes part in, with the credential in the state folder."""
    from feddisco.admin import connect_as_site
    from feddisco.models import fetch_model

    given = {name: value for name, value in flags.items() if value is not None}
    with connect_as_site(load_worker_settings(context.obj | given)) as client:
        echo(fetch_model(client, run, out, round=round, metric=metric, allow=allow or ()))


@app.command("check-data")
@add_flags(
    WorkerSettings,
    *("task", "task_options", "data", "labels", "on_broken"),
    *("policy", "algorithms", "disclosure", "epsilon", "metrics", "sizes"),
)
def check_site_data(
    run: Annotated[str | None, typer.Option(help="The run's configuration file.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="The run's classes in their order, separated by commas.")
    ] = None,
    **flags: Any,
) -> None:
    """Say what a run would find here, what the site's policy says of it, and what would leave.

    Sends nothing. The exit code is 0 if the data can be used, 1 if a run would be declined.
    """
    from feddisco.admin import load_config

    config = None if run is None else load_config(run)
    settings = load_worker_settings(
        ({"task": config.task} if config and flags["task"] is None else {})
        | {name: value for name, value in flags.items() if value is not None}
    )
    contract = None if classes is None else tuple(name.strip() for name in classes.split(","))
    from feddisco.check_data import check_data

    raise typer.Exit(0 if check_data(settings, config, contract, echo) else 1)


@worker_app.command("told")
def worker_told(
    state: Annotated[Path, typer.Option(envvar="FEDDISCO_STATE", help="The worker's state folder.")] = Path(
        "feddisco-worker"
    ),
) -> None:
    """List all that the worker has told its coordinator about its data, oldest first."""
    from worker.told import ACCOUNT, told_lines

    if not state.is_dir():
        raise InvalidConfiguration(f"there is no state folder at {state}.", hint="Give it with --state.")
    for line in told_lines(state):
        echo(line)
    for folder in (state, *sorted(state.glob("slot-*"))):
        if (folder / ACCOUNT).exists():
            from worker.privacy_account import spent_lines  # imports PyTorch

            for line in spent_lines(folder):
                echo(line)


@worker_app.command("identity")
def worker_identity(
    state: Annotated[Path, typer.Option(envvar="FEDDISCO_STATE", help="The worker's state folder.")] = Path(
        "feddisco-worker"
    ),
) -> None:
    """Print the fingerprint of the worker's identity key; the first call makes the key."""
    from worker.state import describe_identity, find_identities, obtain_identity

    found = find_identities(state)
    if not found:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = {"not registered yet": obtain_identity(state)}
    for client, key in found.items():
        echo(f"{client}  {describe_identity(key)}")


@worker_app.command("policy")
def worker_policy(
    example: Annotated[
        bool, typer.Option("--example", help="Print the default policy, to be saved and changed.")
    ] = False,
    check: Annotated[Path | None, typer.Option(help="Say whether this file is a policy.")] = None,
) -> None:
    """Print the default policy, or check one: what this site takes part in, and what it tells."""
    from worker.policy.document import format_policy, list_changes, read_policy

    if example == (check is not None):
        raise InvalidConfiguration("give --example, or --check FILE.")
    if check is None:
        typer.echo(format_policy(), nl=False)
        return
    for line in list_changes(read_policy(check)):
        echo(line)


@app.command()
def demo(
    config: Annotated[str, typer.Argument(help="`demo`, or a configuration file with a partition.")] = "demo",
    port: Annotated[int, typer.Option(help="Port of the status page; 0 takes a free one.")] = 8000,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds, instead of the configuration's.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder or archive with the data.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL instead of SQLite: postgresql://...")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for everything that is written; it is kept.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the whole run to this file, as JSON.")] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Secure sums: the coordinator learns nothing of a single worker."),
    ] = False,
) -> None:
    """Run a coordinator, an evaluator and workers on this machine, by default on images of digits."""
    from feddisco.demo import run_demo

    raise typer.Exit(
        run_demo(
            config,
            port=port,
            rounds=rounds,
            data=data,
            database_url=database_url,
            keep=keep,
            save=save,
            secure=secure,
        )
    )
