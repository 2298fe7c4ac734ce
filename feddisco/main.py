"""The console script: passes flags on and prints answers; decides nothing.

PyTorch is not imported here: ``feddisco --help`` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from feddisco.flags import add_flags
from feddisco.settings import CONNECTION, ConsoleSettings
from feddisco.settings import load as load_console_settings
from server.settings import Settings, unknown_variables
from shared.fingerprints import format_fingerprint, parse_fingerprint
from shared.problems import InvalidConfiguration, Problem
from shared.schemas import JOIN_TOKEN_SECONDS, Role, UserRole
from shared.texts import escape_controls
from worker.settings import WorkerSettings
from worker.settings import load as load_worker_settings

__all__ = ["app", "main"]

app = typer.Typer(
    name="feddisco",
    help="Federated learning with discrepancy-aware aggregation weights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
server_app = typer.Typer(invoke_without_command=True)
worker_app = typer.Typer(invoke_without_command=True)
run_app = typer.Typer(help="Create, inspect and control runs (admin).", no_args_is_help=True)
clients_app = typer.Typer(help="Invite, list and revoke clients (admin).", no_args_is_help=True)
app.add_typer(server_app, name="server")
app.add_typer(worker_app, name="worker")
app.add_typer(run_app, name="run")
app.add_typer(clients_app, name="clients")
users_app = typer.Typer(help="Tokens for people: add, list, renew, revoke (admin).", no_args_is_help=True)
app.add_typer(users_app, name="users")
audit_app = typer.Typer(
    help="The audit log: who did what, and who read what of a client.", no_args_is_help=True
)
app.add_typer(audit_app, name="audit")

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


calls_coordinator = add_flags(ConsoleSettings, *CONNECTION)
OTHER_VARIABLES = [
    f"FEDDISCO_{name.upper()}" for name in (*WorkerSettings.model_fields, *ConsoleSettings.model_fields)
]
"""Of the worker and of the operator's commands."""


def _coordinator_settings(flags: Mapping[str, Any]) -> Settings:
    """The coordinator's settings: flags that were given, over the environment."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        faults = (
            ": ".join([*(str(part) for part in fault["loc"][:1]), fault["msg"].removeprefix("Value error, ")])
            for fault in error.errors()
        )
        raise InvalidConfiguration("; ".join(faults), hint="See docs/settings-coordinator.md.") from None


def _echo(text: str, *, err: bool = False) -> None:
    """Everything is printed by this: parts may be another's words, or a path that is no text at all."""
    typer.echo(escape_controls(text), err=err)


@app.command()
def version() -> None:
    """Print the version."""
    from shared.versions import VERSION

    _echo(f"feddisco {VERSION}")


# ---------------------------------------------------------------- processes


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

    raise typer.Exit(serve(_coordinator_settings(flags), known_elsewhere=OTHER_VARIABLES))


@server_app.command()
def migrate(context: typer.Context) -> None:
    """Upgrade the database's schema to this program's version."""
    from server.main import migrate as run_migrations

    raise typer.Exit(run_migrations(_coordinator_settings(context.obj)))


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
        _echo(f"feddisco worker: {name} is not a setting of the worker; is it misspelt?", err=True)
    raise typer.Exit(run_worker(load_worker_settings(flags)))


@worker_app.command("leave")
@add_flags(WorkerSettings, "url", "state", "ca_file", "insecure")
def worker_leave(context: typer.Context, run: str, **flags: Any) -> None:
    """Leave a run, with the credential in the state folder; the worker itself may go on."""
    from worker.main import leave

    given = {name: value for name, value in flags.items() if value is not None}
    _echo(leave(load_worker_settings(context.obj | given), run))


@app.command("check-data")
@add_flags(WorkerSettings, "task", "task_options", "data", "labels", "on_broken", "policy")
def check_site_data(
    run: Annotated[
        str | None, typer.Option(help="The run's configuration file: its task, options and classes.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="The run's classes in their order, separated by commas.")
    ] = None,
    **flags: Any,
) -> None:
    """Say what a run would find in the data here, and what would leave; sends nothing.

    The exit code is 0 if the data can be used, 1 if a run would be declined.
    """
    from feddisco.admin import load_config

    config = None if run is None else load_config(run)
    settings = load_worker_settings(
        ({"task": config.task} if config and flags["task"] is None else {})
        | {name: value for name, value in flags.items() if value is not None}
    )
    contract = None if classes is None else tuple(name.strip() for name in classes.split(","))
    from feddisco.check_data import check_data

    raise typer.Exit(0 if check_data(settings, config, contract, _echo) else 1)


@worker_app.command("told")
def worker_told(
    state: Annotated[Path, typer.Option(envvar="FEDDISCO_STATE", help="The worker's state folder.")] = Path(
        "feddisco-worker"
    ),
) -> None:
    """List all that the worker has told its coordinator about its data, oldest first."""
    from worker.told import told_lines

    if not state.is_dir():
        raise InvalidConfiguration(f"there is no state folder at {state}.", hint="Give it with --state.")
    for line in told_lines(state):
        _echo(line)


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
        _echo(f"{client}  {describe_identity(key)}")


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
        _echo(line)


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


@app.command("simulate")
def simulate_run(
    config: Annotated[
        str, typer.Argument(help="A configuration file, as for `feddisco run create`, or `demo`.")
    ],
    out: Annotated[Path, typer.Option(help="Result file (JSON lines). An unfinished one is continued.")],
    data: Annotated[Path | None, typer.Option(help="Folder or archive with the data.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded images, kept for later runs.")
    ] = None,
    engine: Annotated[
        Literal["in-process", "processes", "ray"] | None,
        typer.Option(
            help="How a round's clients are mapped: one after the other, side by side, or over the nodes of "
            "a Ray cluster; the models are the same, bit for bit. [default: as --processes or --address ask, "
            "otherwise in-process]"
        ),
    ] = None,
    kernels: Kernels = "torch",
    address: Address = None,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(min=1, help="Number of clients to train side by side.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="PyTorch's threads if there is one process.")] = 1,
) -> None:
    """Run a configuration without a coordinator: the same models, bit for bit, with the kernels torch."""
    from feddisco.admin import load_config

    given = load_config(config)  # a wrong one is reported without waiting for PyTorch
    import torch

    from simulation.run import simulate

    torch.set_num_threads(threads)
    simulate(
        given,
        source=data,
        out=out,
        cache=cache,
        engine=engine,
        kernels=kernels,
        processes=processes,
        address=address,
        device=device,
        say=_echo,
    )


@app.command("sweep")
def sweep_runs(
    config: Annotated[str, typer.Argument(help="A configuration file, or `demo`.")],
    out: Annotated[Path, typer.Option(help="Folder of the result files; the same call goes on with them.")],
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting and its values, as weighting.a=0,0.5,1; several are all combined."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each combination, from the file's on.")] = 1,
    data: Annotated[Path | None, typer.Option(help="Folder or archive with the data.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded images, kept for later runs.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Number of runs side by side, one core each.")] = 1,
    kernels: Kernels = "torch",
    device: Device = "cpu",
) -> None:
    """Simulate a configuration with several values of its settings, and over several seeds.

    The exit code is 1 if a run failed, or another process is doing it.
    """
    from feddisco.admin import load_config
    from feddisco.sweeping import read_choice, sweep, vary

    given, asked = load_config(config), [read_choice(text) for text in choices or ()]
    found = dict(asked)
    if len(found) < len(asked):
        raise InvalidConfiguration("--set names the same setting twice.", hint="Write all values into one.")
    _echo(f"{len(vary(given, found, seeds))} runs, {given.rounds} rounds each, into {out}")
    import torch

    torch.set_num_threads(1)
    swept = sweep(
        given,
        found,
        seeds=seeds,
        out=out,
        data=data,
        cache=cache,
        processes=processes,
        kernels=kernels,
        device=device,
        say=_echo,
    )
    raise typer.Exit(0 if all(end.state == "done" for end in swept.ended) else 1)


@app.command("table")
def tabulate(
    files: Annotated[list[Path], typer.Argument(help="Result files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The table's file: .csv or .parquet.")],
    by: Annotated[
        Literal["round", "run"],
        typer.Option(help="What a row is: a round of a run, or a whole run with its last and best score."),
    ] = "round",
) -> None:
    """Write result files of simulations as one table, with the settings in which the runs differ."""
    from feddisco.result_tables import list_files, tabulate_rounds, tabulate_runs, write_table

    table = (tabulate_runs if by == "run" else tabulate_rounds)(list_files(files))
    write_table(table, out)
    _echo(f"{len(table.rows)} rows, {len(table.columns)} columns: {out}")


@app.command("plot")
def plot_results(
    files: Annotated[list[Path], typer.Argument(help="Result files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The picture's file: .svg, .png or .pdf.")],
    measure: Annotated[
        str, typer.Option(help="accuracy, loss, or another score of the rounds.")
    ] = "accuracy",
) -> None:
    """Draw result files of simulations by round; seeds of like runs are a mean and its standard deviation."""
    from feddisco.plotting import plot
    from feddisco.result_tables import list_files

    curves = plot(list_files(files), out, measure)
    _echo(f"{len(curves)} curves: {out}")


@app.command("reproduce")
def reproduce_table(
    table: Annotated[str, typer.Argument(help="A table of experiments/tables, or `all`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Run only the first rounds of one seed for a few cells.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds 0 to N-1 instead of the table's.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Stop each run after this many rounds; a later call continues.")
    ] = None,
    only: Annotated[str, typer.Option(help="Only runs whose name matches, like '*-fedavg-*-s0'.")] = "*",
    processes: Annotated[int, typer.Option(min=1, help="Number of runs side by side, one core each.")] = 1,
    engine: Annotated[
        Literal["in-process", "processes", "ray"] | None,
        typer.Option(
            help="How the runs are mapped: one after the other, side by side, or over the nodes of a Ray "
            "cluster, one per core. Each run trains in one process. [default: as --processes or --address "
            "ask, otherwise in-process]"
        ),
    ] = None,
    kernels: Kernels = "torch",
    address: Address = None,
    device: Device = "cpu",
    data: Annotated[
        Path | None, typer.Option(envvar="FEDDISCO_DATA", help="Folder with the data sets [../shared/data].")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of results [experiments/results].")] = None,
    docs: Annotated[Path | None, typer.Option(help="Folder for results.md and results/ [docs].")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing, only write the pages.")
    ] = False,
) -> None:
    """Run what a table of the paper still lacks, then write it beside the published figures."""
    flags: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    import torch

    try:
        from experiments.reproduce import Request, reproduce
    except ModuleNotFoundError as missing:
        if missing.name != "experiments":
            raise
        raise InvalidConfiguration(
            "The paper's tables are not part of the installed package.",
            hint="Run it from a checkout of the repository.",
        ) from None

    torch.set_num_threads(1)
    raise typer.Exit(0 if reproduce(Request(**flags), say=_echo) else 1)


@app.command("predict")
def predict_files(
    model: Annotated[Path, typer.Argument(help="A model file, from `feddisco run model`.")],
    files: Annotated[list[Path], typer.Argument(help="Images, tables or texts, as the model's task reads.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print, the likeliest first.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document a line, with every class's probability.")
    ] = False,
    allow: Allow = None,
) -> None:
    """Print what a model says of each image, row or text: its class and that class's probability.

    The exit code is 1 if something could not be read.
    """
    from feddisco.loaded import load
    from feddisco.predicting import format_predictions

    loaded = load(model, allow=allow or ())
    said = loaded.predict(*files)
    for line in format_predictions(said, top, as_json):
        _echo(line)
    for sentence in said.left_out.sentences():
        _echo(f"feddisco: {sentence}", err=True)
    raise typer.Exit(1 if said.left_out.items else 0)


# ---------------------------------------------------------------- runs


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
        _echo(create_run(client, config, weights=weights, if_absent=if_absent))


@run_app.command("list")
@calls_coordinator
def run_list(
    archived: Annotated[bool, typer.Option("--archived", help="Also those that were put away.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that were deleted instead.")] = False,
    **flags: Any,
) -> None:
    """List all runs."""
    from feddisco.admin import connect
    from feddisco.console import print_deletions, print_runs

    with connect(load_console_settings(flags)) as client:
        if deleted:
            print_deletions(client.deletions())
        else:
            print_runs(client.all_runs() if archived else client.runs())


@run_app.command("show")
@calls_coordinator
def run_show(run: str, **flags: Any) -> None:
    """Show a run: status, enrolments, accuracy and the newest ledger."""
    from feddisco.admin import connect
    from feddisco.console import print_run

    with connect(load_console_settings(flags)) as client:
        print_run(client.run(run), client.rounds(run))


@run_app.command("watch")
@calls_coordinator
def run_watch(run: str, **flags: Any) -> None:
    """Follow a run until it ends. The exit code is 0 only if it completed."""
    from feddisco.admin import connect
    from feddisco.console import follow

    with connect(load_console_settings(flags)) as client:
        raise typer.Exit(0 if follow(client, run) == "completed" else 1)


def _control(action: str, run: str, flags: Mapping[str, Any], reason: str = "") -> None:
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        view = client.control(run, action, reason)
        _echo(f"{view.run} is {view.status.value}. {view.waiting_for}".strip())


@run_app.command("start")
@calls_coordinator
def run_start(run: str, **flags: Any) -> None:
    """Start a run now, with the trainers that are ready."""
    _control("start", run, flags)


@run_app.command("pause")
@calls_coordinator
def run_pause(run: str, reason: str = "", **flags: Any) -> None:
    """Pause a run: the open round continues, no further round opens."""
    _control("pause", run, flags, reason)


@run_app.command("resume")
@calls_coordinator
def run_resume(run: str, **flags: Any) -> None:
    """Resume a paused run."""
    _control("resume", run, flags)


@run_app.command("stop")
@calls_coordinator
def run_stop(run: str, reason: str = "", **flags: Any) -> None:
    """Stop a run for good. The open round is abandoned."""
    _control("stop", run, flags, reason)


@run_app.command("rewind")
@calls_coordinator
def run_rewind(
    run: str,
    round: Annotated[int, typer.Option(min=0, help="The round to go back to; 0: the initial model.")],
    reason: str = "",
    **flags: Any,
) -> None:
    """Go back to an earlier round's model and go on from there, in the same run."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        view = client.rewind(run, round, reason)
        _echo(
            f"{run} is back at round {view.completed_rounds}, {view.status.value}. {view.waiting_for}".strip()
        )


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@run_app.command("change")
@calls_coordinator
def run_change(
    run: str,
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
    **flags: Any,
) -> None:
    """Change a run where that touches no past round."""
    from feddisco.admin import connect, make_changes

    changes = make_changes(
        rounds=rounds,
        quorum=quorum,
        deadline=deadline,
        waiting_deadline=waiting_deadline,
        keep_updates=keep_updates,
    )
    with connect(load_console_settings(flags)) as client:
        view = client.change(run, changes)
        _echo(f"{run} has revision {view.revision}, {view.status.value}. {view.waiting_for}".strip())


@run_app.command("archive")
@calls_coordinator
def run_archive(
    run: str,
    undo: Annotated[bool, typer.Option("--undo", help="List it again.")] = False,
    **flags: Any,
) -> None:
    """Put an ended run away: it is no longer listed, and not pruned; nothing of it is lost."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.control(run, "unarchive" if undo else "archive")
        _echo(f"{run} is listed again." if undo else f"{run} is put away: feddisco run list --archived.")


@run_app.command("delete")
@calls_coordinator
def run_delete(run: str, reason: str = "", yes: Yes = False, **flags: Any) -> None:
    """Delete an ended run for good, with its files. A record of it is kept."""
    from feddisco.admin import connect
    from feddisco.ending import delete_runs, describe_run

    with connect(load_console_settings(flags)) as client:
        _echo(describe_run(client.run(run)))
        for sentence in delete_runs(client, [run], reason, None if yes else _confirm):
            _echo(sentence)


def _confirm(question: str) -> None:
    typer.confirm(escape_controls(question), abort=True, err=True)


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
            _echo(describe_run(run))
        if not found:
            _echo(f"No run ended more than {older_than} ago, or they are put away.")
            return
        names = [run.run for run in found]
        reason = f"pruned: older than {older_than}"
        for sentence in delete_runs(client, names, reason, None if yes else _confirm):
            _echo(sentence)


@run_app.command("approve")
@calls_coordinator
def run_approve(
    run: str,
    clients: Annotated[
        list[str] | None, typer.Argument(help="Clients to let in. Without any, those that wait are listed.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Approve this size only. Without it, the one declared.")
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
            _echo(sentence)


@run_app.command("refuse")
@calls_coordinator
def run_refuse(run: str, client_id: str, reason: str = "", **flags: Any) -> None:
    """Take a client out of a run, or keep it out. If it comes again, it waits for approval."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.refuse(run, client_id, reason)
        _echo(f"{client_id} takes no part in {run}.")


@run_app.command("model")
@calls_coordinator
def run_model(
    run: str,
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
        _echo(said)


@run_app.command("export")
@calls_coordinator
def run_export(
    run: str,
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
    run: str,
    out: Annotated[Path | None, typer.Option(help="File to write. Without it, the terminal.")] = None,
    round: WhichRound = None,
    metric: ByMetric = None,
    allow: Allow = None,
    **flags: Any,
) -> None:
    """Write a model card in Markdown: what the model is, how it was made and what it scored."""
    from feddisco.admin import connect
    from feddisco.cards import fetch_card
    from shared.files import replace_file

    with connect(load_console_settings(flags)) as client:
        card = fetch_card(client, run, round, metric, allow or ())
    if out is None:
        typer.echo(card)
    else:
        replace_file(out, card.encode())
        typer.echo(str(out))


# ---------------------------------------------------------------- clients


@clients_app.command("invite")
@calls_coordinator
def clients_invite(
    uses: Annotated[int, typer.Option(min=0, help="How many clients may join with it; 0: any number.")] = 1,
    days: Annotated[
        float, typer.Option(min=0, help="How many days it is valid; 0: until it is revoked.")
    ] = JOIN_TOKEN_SECONDS / 86400,
    role: Annotated[
        Role | None, typer.Option(help="The only role in which its clients may take part in runs.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Group of its clients, which runs may admit.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of its one client, kept for it.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address as sites reach it. Without it, the coordinator's own setting, or --url."),
    ] = None,
    token_only: Annotated[
        bool, typer.Option("--token-only", help="Print the join token alone, for programs of your own.")
    ] = False,
    **flags: Any,
) -> None:
    """Make a join code for a site: address, certificate and join token in one string, shown only once."""
    from feddisco.admin import connect, make_invitation
    from feddisco.invitation import describe_invitation, find_newest_task, make_join_code
    from shared.join_codes import write_join_code

    request = make_invitation(uses=uses, days=days, role=role, group=group, name=name)
    settings = load_console_settings(flags)
    with connect(settings) as client:
        token = client.invite(request)
        code = make_join_code(token, address or token.address or settings.address)
        _echo(code.token if token_only else write_join_code(code))
        _echo(describe_invitation(token, code, find_newest_task(client)), err=True)


@clients_app.command("list")
@calls_coordinator
def clients_list(**flags: Any) -> None:
    """List the registered clients."""
    from feddisco.admin import connect
    from feddisco.console import print_clients

    with connect(load_console_settings(flags)) as client:
        print_clients(client.clients())


@clients_app.command("keys")
@calls_coordinator
def clients_keys(**flags: Any) -> None:
    """Print the fingerprint of each client's identity key, to be compared with the site by telephone."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        for found in client.clients():
            key = "no identity key" if found.fingerprint is None else format_fingerprint(found.fingerprint)
            _echo(f"{found.client}  {key}")


@clients_app.command("pin")
@calls_coordinator
def clients_pin(client_id: str, key: str, **flags: Any) -> None:
    """Let a name be registered under the identity key of this fingerprint only (see `worker identity`)."""
    from feddisco.admin import connect

    try:
        digits = parse_fingerprint(key)
    except ValueError as error:
        raise InvalidConfiguration(f"{key!r} {error}.") from error
    with connect(load_console_settings(flags)) as client:
        client.pin_identity(client_id, digits)
        _echo(f"{client_id} is pinned to {format_fingerprint(digits)}")


@clients_app.command("revoke")
@calls_coordinator
def clients_revoke(client_id: str, **flags: Any) -> None:
    """Revoke a client's token. The client leaves its runs at once."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.revoke(client_id)
        _echo(f"{client_id} is revoked.")


@clients_app.command("erase")
@calls_coordinator
def clients_erase(client_id: str, yes: Yes = False, **flags: Any) -> None:
    """Erase a client that withdraws: its token, name, words and files, everywhere and for good."""
    from feddisco.admin import connect
    from feddisco.ending import describe_erasure

    with connect(load_console_settings(flags)) as client:
        if not yes:
            _confirm(
                f"Erase {client_id} for good? Its numbers stay in the ledgers, under a name of no meaning."
            )
        _echo(describe_erasure(client_id, client.erase(client_id)))


# ---------------------------------------------------------------- people


@users_app.command("add")
@calls_coordinator
def users_add(
    name: Annotated[str, typer.Argument(help="The person's name, as the logs will have it.")],
    role: Annotated[
        UserRole,
        typer.Option(help="viewer reads, operator creates and controls runs and invites, admin does all."),
    ] = UserRole.VIEWER,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="The only run that it is for; may be given several times. [default: all]"),
    ] = None,
    **flags: Any,
) -> None:
    """Make a token for a person; it is shown only once. Pages and commands take it."""
    from feddisco.admin import connect, make_user_request

    with connect(load_console_settings(flags)) as client:
        made = client.add_user(make_user_request(name, role, run or ()))
        _echo(made.token)
        runs = "all runs" if made.runs is None else ", ".join(made.runs)
        _echo(
            f"{made.name} is {made.role.value} for {runs}. To be set as FEDDISCO_TOKEN, or given to the "
            "sign-in of the pages.",
            err=True,
        )


@users_app.command("list")
@calls_coordinator
def users_list(**flags: Any) -> None:
    """List the people who have or had a token."""
    from feddisco.admin import connect
    from feddisco.console import print_users

    with connect(load_console_settings(flags)) as client:
        print_users(client.users())


@users_app.command("renew")
@calls_coordinator
def users_renew(name: str, **flags: Any) -> None:
    """Replace a person's token, shown only once. The one before ends at once."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        _echo(client.renew_user(name).token)


@users_app.command("revoke")
@calls_coordinator
def users_revoke(name: str, **flags: Any) -> None:
    """Revoke a person's token. Sessions and open streams end at once."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.revoke_user(name)
        _echo(f"{name} is revoked.")


@audit_app.command("export")
@calls_coordinator
def audit_export(
    out: Annotated[Path | None, typer.Option(help="File to write. Without it, the terminal.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only entries with a larger number.")] = 0,
    **flags: Any,
) -> None:
    """Write the audit log as JSON lines, oldest first; each line holds the SHA-256 of the one before."""
    from feddisco.admin import connect
    from feddisco.audit import export_audit_log

    with connect(load_console_settings(flags)) as client:
        said = export_audit_log(client, out, after, typer.echo)
    _echo(said, err=True)


@audit_app.command("verify")
@add_flags(Settings, "data_folder", "database_url")
def audit_verify(
    file: Annotated[
        Path | None, typer.Argument(help="An exported file. Without it, the database itself.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="SHA-256 of an entry, noted elsewhere: it must be among them.")
    ] = None,
    **flags: Any,
) -> None:
    """Check that no entry was changed, removed or added in the audit log. The coordinator may run.

    The exit code is 0 if all is well, 1 if anything is wrong.
    """
    from feddisco.audit import verify_audit_database, verify_audit_file

    settings = _coordinator_settings(flags)
    faults, said = verify_audit_file(file, head) if file else verify_audit_database(settings, head)
    for line in (*faults, said):
        _echo(line)
    raise typer.Exit(1 if faults else 0)


@app.command()
@add_flags(Settings, "data_folder", "database_url")
def replay(run: str, round: int, **flags: Any) -> None:
    """Rebuild a round's model from its stored updates and compare the digests."""
    from feddisco.replay import replay_round

    ok, sentence = replay_round(_coordinator_settings(flags), run, round)
    _echo(sentence)
    raise typer.Exit(0 if ok else 1)


@app.command("verify")
@add_flags(Settings, "data_folder", "database_url")
def verify_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False, **flags: Any
) -> None:
    """Compare all that is stored with what was written: database, files, ledgers. Writes nothing.

    The coordinator may run or not. The exit code is 0 if all is well, 1 if anything is wrong.
    """
    from feddisco.verify import print_report, verify_storage

    ok = print_report(verify_storage(_coordinator_settings(flags)), as_json, typer.echo)
    raise typer.Exit(0 if ok else 1)


class _BackupGroup(TyperGroup):
    """``backup DIR`` is ``backup create DIR``."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["create", *args]
        return super().parse_args(context, args)


backup_app = typer.Typer(
    cls=_BackupGroup, help="Back up database and files: feddisco backup DIR.", no_args_is_help=True
)
app.add_typer(backup_app, name="backup")


@backup_app.command("create")
@add_flags(Settings, "data_folder", "database_url")
def backup_create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    keep: Annotated[int | None, typer.Option(min=1, help="Remove all but so many newest snapshots.")] = None,
    **flags: Any,
) -> None:
    """Add a snapshot of database and files; only new files are copied. The coordinator may run."""
    from feddisco.backup import back_up

    typer.echo(back_up(_coordinator_settings(flags), folder, keep))


@backup_app.command("verify")
def backup_verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    snapshot: Annotated[str | None, typer.Option(help="Its name. Without it, the newest.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a snapshot with what was written. The exit code is 0 if all is well, 1 if anything is wrong."""
    from feddisco.backup import verify_backup
    from feddisco.verify import print_report

    raise typer.Exit(0 if print_report(verify_backup(folder, snapshot), as_json, typer.echo) else 1)


@app.command("restore")
@add_flags(Settings, "data_folder", "database_url")
def restore_backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    snapshot: Annotated[str | None, typer.Option(help="Its name. Without it, the newest.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that holds data.")] = False,
    revocations: Annotated[
        Path | None, typer.Option(help="The coordinator's revocations.jsonl, if its data folder is lost.")
    ] = None,
    no_later_revocations: Annotated[
        bool, typer.Option("--no-later-revocations", help="No token was revoked since the snapshot.")
    ] = False,
    revoke_all: Annotated[
        bool, typer.Option("--revoke-all", help="It is not known which were: revoke every token.")
    ] = False,
    with_deleted: Annotated[
        bool, typer.Option("--with-deleted", help="Bring back runs that were deleted since the snapshot.")
    ] = False,
    **flags: Any,
) -> None:
    """Make database and files what a snapshot holds, while the coordinator is stopped."""
    from feddisco.backup import restore

    typer.echo(
        restore(
            _coordinator_settings(flags),
            folder,
            name=snapshot,
            replace=replace,
            later="all" if revoke_all else "none" if no_later_revocations else "known",
            revocations=revocations,
            with_deleted=with_deleted,
        )
    )


POSIX_ONLY = ("fcntl", "resource")
FOLDER_FAULTS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG),
)
"""What a person can change about a file or folder that was named; anything else is a fault of ours."""


def main() -> None:
    """Entry point; a problem ends with one sentence and exit code 2."""
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
    _echo(f"feddisco: {sentence}", err=True)
    sys.exit(2)
