"""What needs no coordinator: simulations, their tables and pictures, predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from feddisco.commands.common import Address, Allow, Device, Kernels, echo, make_app
from shared.problems import InvalidConfiguration
from shared.texts import format_count

__all__ = ["app"]

app = make_app()


@app.command()
def version() -> None:
    """Print the version."""
    from shared.versions import VERSION

    echo(f"feddisco {VERSION}")


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
    keep_checkpoint: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoint", help="Keep what a later call with more rounds goes on from, also at the end."
        ),
    ] = False,
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
        keep_checkpoint=keep_checkpoint,
        say=echo,
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
    runs, rounds = len(vary(given, found, seeds)), format_count(given.rounds, "round")
    echo(f"{format_count(runs, 'run')}, {rounds} each, into {out}")
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
        say=echo,
    )
    raise typer.Exit(0 if all(end.state == "done" for end in swept.ended) else 1)


@app.command("table")
def tabulate(
    files: Annotated[list[Path], typer.Argument(help="Result files, or folders of them.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The table's file: .csv or .parquet. Without it, the terminal, as CSV."),
    ] = None,
    by: Annotated[
        Literal["round", "run"],
        typer.Option(help="What a row is: a round of a run, or a whole run with its last and best score."),
    ] = "round",
) -> None:
    """Write result files of simulations as one table, with the settings in which the runs differ."""
    from feddisco.result_tables import (
        format_table,
        list_files,
        tabulate_rounds,
        tabulate_runs,
        write_table,
    )

    table = (tabulate_runs if by == "run" else tabulate_rounds)(list_files(files))
    if out is None:
        typer.echo(format_table(table), nl=False)
        return
    write_table(table, out)
    echo(f"{format_count(len(table.rows), 'row')}, {format_count(len(table.columns), 'column')}: {out}")


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
    echo(f"{len(curves)} curves: {out}")


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
    weightings: Annotated[
        list[str] | None,
        typer.Option(
            "--weighting",
            help="Add this weighting to the table: a kind, the import path of your own class, or NAME={...} "
            "with what a configuration says of it. Can be given again.",
        ),
    ] = None,
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
    raise typer.Exit(0 if reproduce(Request(**flags), say=echo) else 1)


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

    The exit code is 1 if something could not be read, or the model gives no finite number for it.
    """
    from feddisco.loaded import load
    from feddisco.predicting import format_predictions

    loaded = load(model, allow=allow or ())
    said = loaded.predict(*files)
    for line in format_predictions(said, top, as_json):
        echo(line)
    for sentence in said.left_out.name_each():
        echo(f"feddisco: {sentence}.", err=True)
    raise typer.Exit(1 if said.left_out.items else 0)
