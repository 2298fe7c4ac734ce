"""Tables for the terminal, from the same views that the pages show."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from feddisco.admin import Admin
from shared.schemas import (
    ClientView,
    EvaluationView,
    LedgerRow,
    RoundStatus,
    RoundView,
    RunStatus,
    RunSummary,
    RunView,
)

__all__ = ["accuracy_table", "clients_table", "follow", "ledger_table", "newest", "run_page", "runs_table"]

_console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _table(title: str, *columns: str, rows: Iterable[Sequence[str]]) -> None:
    _console.print(f"[bold]{title}[/bold]")  # a title of the table's own would wrap to its width
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    _console.print(table)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _when(value: dt.datetime | None) -> str:
    return "" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def runs_table(runs: Sequence[RunSummary]) -> None:
    if not runs:
        _console.print("No runs yet. Create one: feddisco run create CONFIG.yaml")
        return
    rows = (
        (
            r.run,
            r.status.value,
            r.task,
            r.algorithm,
            r.weighting,
            f"{r.completed_rounds}/{r.rounds}",
            _percent(r.accuracy),
        )
        for r in runs
    )
    _table("Runs", "run", "status", "task", "algorithm", "weighting", "rounds", "accuracy", rows=rows)


def clients_table(clients: Sequence[ClientView]) -> None:
    rows = (
        (
            c.client,
            "revoked" if c.revoked_at else "valid",
            _when(c.registered_at),
            _when(c.last_seen_at),
            c.version,
        )
        for c in clients
    )
    _table("Clients", "client", "token", "registered (UTC)", "last seen (UTC)", "version", rows=rows)


def ledger_table(rows: Sequence[LedgerRow], title: str) -> None:
    """n_k, d_k, score and p_k beside what plain sizes would have given."""
    _table(
        title,
        *("client", "examples", "n_k", "d_k", "d_k norm.", "score", "p_k", "by size", "why"),
        rows=(
            (
                row.client,
                str(row.examples),
                _share(row.size_share),
                _share(row.discrepancy),
                _share(row.discrepancy_share),
                _share(row.score),
                _share(row.weight),
                _share(row.size_weight),
                row.reason or ("in" if row.included else row.status.value),
            )
            for row in rows
        ),
    )


def accuracy_table(evaluation: EvaluationView, title: str) -> None:
    rows = [(name, _percent(value)) for name, value in evaluation.per_category.items()]
    rows.append(("all", _percent(evaluation.accuracy)))
    _table(title, "category", "accuracy", rows=rows)


def newest(rounds: Sequence[RoundView]) -> RoundView | None:
    """The last completed round."""
    done = [view for view in rounds if view.status is RoundStatus.COMPLETED]
    return max(done, key=lambda view: view.round, default=None)


def run_page(run: RunView, rounds: Sequence[RoundView]) -> None:
    _console.print(f"[bold]{run.run}[/bold]  {run.status.value}  {run.completed_rounds}/{run.rounds} rounds")
    if run.reason:
        _console.print(run.reason)
    if run.waiting_for:
        _console.print(run.waiting_for)
    _table(
        "Enrolled",
        *("client", "role", "status", "index", "examples", "d_k", "last error"),
        rows=(
            (
                e.client,
                e.role.value,
                e.status.value,
                "" if e.index is None else str(e.index),
                str(e.examples),
                _share(e.discrepancy),
                e.last_error or e.reason or "",
            )
            for e in run.enrolments
        ),
    )
    if last := newest(rounds):
        ledger_table(last.ledger, f"Ledger of round {last.round}")
        for evaluation in last.evaluations:
            accuracy_table(evaluation, f"Round {last.round}, scored by {evaluation.client}")


def follow(client: Admin, run: str, say: Callable[[str], None] = _console.print) -> RunStatus:
    """Print a line for every round as it is scored, until the run has ended and its last round is scored.

    Returns the run's final status.
    """
    said: set[int] = set()
    waiting = ""
    patience = time.monotonic() + 30
    while True:
        view = client.run(run)
        rounds = client.rounds(run)
        for line in _lines(rounds, view.rounds, said):
            say(line)
        if view.status.is_terminal:
            last = newest(rounds)
            if (
                last is None
                or last.evaluations
                or not view.config.evaluate_every
                or time.monotonic() > patience
            ):
                return view.status
        else:
            patience = time.monotonic() + 30
            if view.status is not RunStatus.RUNNING and view.waiting_for != waiting:
                waiting = view.waiting_for
                say(waiting)
        time.sleep(0.2)


def _lines(rounds: Sequence[RoundView], total: int, said: set[int]) -> Iterable[str]:
    for view in sorted(rounds, key=lambda view: view.round):
        if view.round in said or not view.evaluations or view.status is not RoundStatus.COMPLETED:
            continue
        said.add(view.round)
        evaluation = view.evaluations[0]
        arrived = sum(row.included for row in view.ledger)
        yield (
            f"round {view.round:>3}/{total}  accuracy {_percent(evaluation.accuracy):>8}  "
            f"loss {_loss(evaluation.loss)}  {arrived} of {len(view.ledger)} updates"
        )
