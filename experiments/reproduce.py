"""``feddisco reproduce``: run what is missing of a table, then write its page and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from experiments import exploration, tuning
from experiments.evidence import Evidence, gather
from experiments.figures import draw
from experiments.overview import Entry, overview
from experiments.plan import PlannedRun, expand, quickened, with_weightings
from experiments.records import publish, rounds_in
from experiments.report import progress, table_page
from experiments.tables import HERE, Table, available, load_table, settings
from experiments.theory_page import theory_page
from shared.config import Frozen
from shared.documents import parse_yaml
from shared.files import replace_file
from shared.problems import InvalidConfiguration
from shared.texts import format_count
from simulation.engines import EngineName, choose_engine
from simulation.kernels import KernelsName
from simulation.sweep import Planned, Swept, claim_results, sweep
from simulation.sweep.ray import sweep_over_nodes

__all__ = ["RESULTS", "Request", "chosen", "reproduce"]

SOURCES = HERE / "sources.yaml"
"""Names of a task's files in the data folder."""

RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
WORK = ".work"
"""Folder inside the results for what an unfinished run needs to go on; not committed."""

Say = Callable[[str], None]


class Request(Frozen):
    """What to reproduce, how much of it, and where things are."""

    table: str
    quick: bool = False
    seeds: int | None = None
    rounds: int | None = None
    only: str = "*"
    processes: int = 1
    engine: EngineName | None = None
    kernels: KernelsName = "torch"
    device: str = "cpu"
    address: str | None = None
    data: Path | None = None
    results: Path = RESULTS
    docs: Path = DOCS
    report_only: bool = False
    weightings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Missing:
    """Runs to do, and the tasks whose data are not there with what was looked for."""

    runs: tuple[Planned, ...]
    without_data: dict[str, str]


def reproduce(request: Request, say: Say = print) -> bool:
    """Run what is missing, write the pages; whether every run that was begun came to its end.

    Raises:
        InvalidConfiguration: no such table, none of its runs has such a name, or results of another
            configuration are in the way.
    """
    well = True
    tables = [with_weightings(load_table(name), request.weightings) for name in chosen(request.table)]
    if not request.report_only:
        _check_only(tables, request)
        for table in tables:
            well &= _run(table, request, say)
    for table in tables:
        _publish(table, request.results)
        say(f"wrote {write_page(table, request.results, request.docs)}")
    write_overview(request.results, request.docs)
    return well


def chosen(name: str) -> tuple[str, ...]:
    """The tables of that name: one, or all of them."""
    return available() if name == "all" else (name,)


# ---------------------------------------------------------------- running


def _check_only(tables: Sequence[Table], request: Request) -> None:
    """Refuse a pattern that is no run's name, or it would be said that all is done."""
    if request.only == "*":
        return
    names = [name for table in tables for name in _names(table, request)]
    if names and not any(fnmatch(name, request.only) for name in names):
        raise InvalidConfiguration(
            f"only: no run has a name like {request.only!r}.", hint=f"The first is {names[0]}."
        )


def _names(table: Table, request: Request) -> list[str]:
    """Of all runs that may be asked for; where a and b are tuned, whichever pair is chosen."""
    if table.kind == "theory":
        return []
    if table.kind != "runs":
        return [trial.config.name for trial in _trials(table, request)]
    asked = quickened(table) if request.quick else table
    pairs = (None,) if asked.tune is None else asked.tune.pairs
    plans = (
        expand(asked.model_copy(update={"chosen": pair}), seeds=request.seeds, rounds=request.rounds)
        for pair in pairs
    )
    return [run.config.name for plan in plans for run in plan]


def _run(table: Table, request: Request, say: Say) -> bool:
    if table.kind == "theory":
        return True
    if table.kind != "runs":
        return _explore(table, request, say)
    asked = quickened(table) if request.quick else table
    if asked.tune is None:
        return _run_all(asked, request, say)
    well = _run_all(tuning.trials(asked), request, say)
    _publish(asked, request.results)
    return _run_all(tuning.settled(asked, request.results), request, say) and well


def _run_all(asked: Table, request: Request, say: Say) -> bool:
    plan = expand(asked, seeds=request.seeds, rounds=request.rounds, only=request.only)
    missing = _missing(plan, request)
    for task, why in missing.without_data.items():
        say(f"{asked.name}: no data for {task}: {why}")
    say(f"{asked.name}: {format_count(len(plan), 'run')}, {len(missing.runs)} to do")
    ended = _sweep(missing.runs, request, say)
    return all(run.state != "failed" for run in ended) and not missing.without_data


def _sweep(runs: Sequence[Planned], request: Request, say: Say) -> list[Swept]:
    """The runs one after the other, side by side, or over a cluster; each trains in one process."""
    engine = choose_engine(request.engine, request.processes, request.address)
    if engine != "ray":
        return sweep(runs, processes=request.processes, say=say)
    if request.device != "cpu":
        raise InvalidConfiguration(
            f"device: runs over a cluster train on the CPU, received {request.device}.",
            hint="Leave device out, or run on one machine.",
        )
    return sweep_over_nodes(runs, address=request.address, say=say) if runs else []


def _missing(plan: Sequence[PlannedRun], request: Request) -> _Missing:
    runs, without = [], {}
    for run in plan:
        if rounds_in(request.results / run.file, run.config) >= run.rounds:
            continue
        try:
            source = find_source(run.config.task, request.data)
        except InvalidConfiguration as problem:
            without[run.config.task] = str(problem)
            continue
        work = request.results / WORK
        cache, out = work / "cache", work / run.file
        runs.append(Planned(run.config, out, source, cache, run.rounds, request.kernels, request.device))
    return _Missing(tuple(runs), without)


def _explore(table: Table, request: Request, say: Say) -> bool:
    for trial in _trials(table, request):
        if trial.out.exists() or not fnmatch(trial.config.name, request.only):
            continue
        try:
            source = find_source(trial.config.task, request.data)
        except InvalidConfiguration as problem:
            say(f"{table.name}: {problem}")
            return False
        with claim_results(request.results / WORK / table.kind / trial.out.name) as ours:
            if ours:
                exploration.explore(trial, source, request.results / WORK / "cache", say)
    return True


def _trials(table: Table, request: Request) -> list[exploration.Trial]:
    seeds = 1 if request.quick else request.seeds or table.seeds
    return exploration.trials(table, request.results, seeds=seeds)


def find_source(task: str, data: Path | None) -> Path | None:
    """The task's data in the data folder; None for a task that brings its own.

    Raises:
        InvalidConfiguration: not there; says what was looked for, and where.
    """
    known: dict[str, list[str]] = parse_yaml(SOURCES.read_text(encoding="utf-8"), SOURCES)
    if task not in known:
        return None
    names = known[task]
    folder = data or HERE.parent.parent / "shared" / "data"
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise InvalidConfiguration(
        f"data: {folder} has none of {', '.join(names)}.", hint="Give --data FOLDER, or set FEDDISCO_DATA."
    )


# ---------------------------------------------------------------- writing


def _publish(table: Table, results: Path) -> None:
    """The compact form of all that the table's runs have so far, finished or not."""
    for setting in table.settings:
        for source in sorted((results / WORK / setting).glob("*.jsonl")):
            publish(source, results / setting / source.name)


def write_page(table: Table, results: Path, docs: Path) -> Path:
    """Write ``docs/results/TABLE.md`` and its figures from the committed results alone."""
    folder = docs / "results"
    folder.mkdir(parents=True, exist_ok=True)
    if table.kind == "theory":
        text = theory_page(table, folder)
    elif table.kind == "runs":
        evidence = gather(tuning.settled(table, results), results)
        text = table_page(evidence, draw(evidence, folder))
    else:
        text, _ = exploration.exploration_page(table, results, folder)
    page = folder / f"{table.name}.md"
    replace_file(page, text.encode())
    return page


def write_overview(results: Path, docs: Path) -> None:
    """Write ``docs/results.md``: what was measured, and every table with its state."""
    entries = [_entry(table, results) for table in map(load_table, available())]
    replace_file(docs / "results.md", overview(entries).encode())


def _entry(table: Table, results: Path) -> Entry:
    if table.kind == "theory":
        words = "the bound falls as claimed for lambda near O; the printed rows cannot be as labelled"
        return Entry(table, "partly", words)
    if table.kind != "runs":
        done = len(exploration.find_trials(table, results))
        state = "not yet run" if not done else "run" if done == table.seeds else "partly"
        return Entry(table, state, f"{done} of {table.seeds} trials")
    evidence = gather(tuning.settled(table, results), results)
    return Entry(table, evidence.state(), progress(evidence) + _reason(evidence), evidence)


def _reason(evidence: Evidence) -> str:
    """Why a table has settings without any result, where others have some."""
    names = evidence.table.settings
    ran = {cell.setting for cell, curves in evidence.curves.items() if curves}
    empty = [settings()[name] for name in names if name not in ran]
    if not empty or len(empty) == len(names):
        return ""
    by_reason: dict[str, list[str]] = {}
    for setting in empty:
        by_reason.setdefault(setting.unrun, []).append(setting.title)
    parts = [f"{'; '.join(titles)} ({reason})" for reason, titles in by_reason.items()]
    return f" Not yet run: {'; '.join(parts)}."
