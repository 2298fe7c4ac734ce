"""Tables for the terminal, from the same views that the pages show."""

from __future__ import annotations

import datetime as dt
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from feddisco.admin import AdminClient, describe_wait
from shared.schemas import (
    ClientView,
    Deletion,
    EnrolmentView,
    EvaluationView,
    EventView,
    JoinToken,
    JoinTokenView,
    LedgerRow,
    Role,
    RoundStatus,
    RoundView,
    RunStatus,
    RunSummary,
    RunView,
    SumTotals,
    UserView,
)
from shared.scores import describe_score
from shared.texts import escape_controls, format_count

__all__ = [
    "describe_join_token",
    "find_newest",
    "follow",
    "print_accuracy",
    "print_clients",
    "print_deletions",
    "print_ledger",
    "print_run",
    "print_runs",
    "print_steps",
    "print_sums",
    "print_users",
    "print_waiting",
    "say",
]

_console = Console(highlight=False, width=None if sys.stdout is not None and sys.stdout.isatty() else 120)


def say(text: str, style: str = "") -> None:
    """Reasons are what others wrote: neither their markup nor their control characters count."""
    _console.print(Text(escape_controls(text), style))


def _print_table(title: str, *columns: str, rows: Iterable[Sequence[str]]) -> None:
    say(title, "bold")  # a title of the table's own would wrap to its width
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    _console.print(table)


def _format_share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _format_loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _format_time(value: dt.datetime | None) -> str:
    return "" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def print_runs(runs: Sequence[RunSummary], *, are_all: bool = True) -> None:
    if not runs:
        say("No runs yet. Create one: feddisco run create CONFIG.yaml" if are_all else "No run is like that.")
        return
    rows = [
        [
            r.run,
            r.status.value,
            r.task,
            r.algorithm,
            r.weighting,
            f"{r.completed_rounds}/{r.rounds}",
            _format_percent(r.accuracy),
        ]
        for r in runs
    ]
    columns = ["run", "status", "task", "algorithm", "weighting", "rounds", "accuracy"]
    if any(r.headline is not None for r in runs):
        columns.append("headline")
        for r, row in zip(runs, rows, strict=True):
            row.append("" if r.headline is None else describe_score(r.headline.name, r.headline.value))
    if any(r.tags for r in runs):
        columns.append("tags")
        for r, row in zip(runs, rows, strict=True):
            row.append(", ".join(r.tags))
    _print_table("Runs", *columns, rows=rows)


def print_deletions(deletions: Sequence[Deletion]) -> None:
    rows = (
        (d.run, _format_time(d.created_at), _format_time(d.deleted_at), d.actor, d.reason) for d in deletions
    )
    _print_table("Deleted runs", "run", "created (UTC)", "deleted (UTC)", "by", "reason", rows=rows)


def print_clients(clients: Sequence[ClientView]) -> None:
    rows = (
        (
            c.client,
            "revoked" if c.revoked_at else "valid",
            _format_time(c.registered_at),
            _format_time(c.last_seen_at),
            c.version,
            c.group or "",
            c.role.value if c.role else "any",
        )
        for c in clients
    )
    columns = ("client", "token", "registered (UTC)", "last seen (UTC)", "version", "group", "role")
    _print_table("Clients", *columns, rows=rows)


def print_invitations(tokens: Sequence[JoinTokenView]) -> None:
    rows = (
        (
            str(t.id),
            _say_state(t),
            "any number" if t.uses_left is None else str(t.uses_left),
            _format_time(t.created_at),
            _format_time(t.expires_at),
            t.name or "",
            t.group or "",
            t.role.value if t.role else "any",
        )
        for t in tokens
    )
    columns = ("number", "state", "uses left", "made (UTC)", "valid until (UTC)", "name", "group", "role")
    _print_table("Join codes", *columns, rows=rows)


def _say_state(token: JoinTokenView) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.uses_left == 0:
        return "used up"
    is_over = token.expires_at is not None and token.expires_at <= dt.datetime.now(dt.UTC)
    return "expired" if is_over else "valid"


def print_users(users: Sequence[UserView]) -> None:
    rows = (
        (
            u.name,
            u.role.value,
            "all" if u.runs is None else ", ".join(u.runs),
            "revoked" if u.revoked_at else "valid",
            _format_time(u.created_at),
            _format_time(u.renewed_at or u.created_at),
        )
        for u in users
    )
    columns = ("user", "role", "runs", "token", "added (UTC)", "token of (UTC)")
    _print_table("Users", *columns, rows=rows)


def describe_join_token(token: JoinToken) -> str:
    """``join code 3, valid for 1 client until 2026-12-05T12:00+00:00, as evaluator``."""
    clients = format_count(token.uses, "client") if token.uses else "any number of clients"
    until = token.expires_at.isoformat(timespec="minutes") if token.expires_at else "revoked"
    words = [f"join code {token.id}, valid for {clients}", f"until {until}"]
    words += [f"named {token.name}"] if token.name else []
    words += [f"in the group {token.group}"] if token.group else []
    words += [f"as {token.role.value} only"] if token.role else []
    return ", ".join(words)


def print_waiting(run: str, waiting: Sequence[EnrolmentView]) -> None:
    """Who waits for the operator's approval, and why."""
    if not waiting:
        say(f"Nobody waits for approval in {run}.")
        return
    rows = ((row.client, row.role.value, str(row.examples), row.reason or "") for row in waiting)
    _print_table(f"Waiting for approval in {run}", "client", "role", "examples", "why", rows=rows)


def print_ledger(rows: Sequence[LedgerRow], title: str) -> None:
    """n_k, d_k, score and p_k beside what plain sizes would have given."""
    _print_table(
        title,
        *("client", "examples", "n_k", "d_k", "d_k norm.", "score", "p_k", "by size", "why"),
        rows=(
            (
                row.client,
                str(row.examples),
                _format_share(row.size_share),
                _format_share(row.discrepancy),
                _format_share(row.discrepancy_share),
                _format_share(row.score),
                _format_share(row.weight),
                _format_share(row.size_weight),
                row.reason or ("in" if row.included else row.status.value),
            )
            for row in rows
        ),
    )


_STEPS = {
    "advertise": "public keys, signed with identity keys",
    "share": "each key split among the others, sealed",
    "upload": "training, and the update under masks",
    "agree": "signatures under whose uploads are in the sum",
    "unmask": "the shares that remove the masks of the sum",
}


def print_steps(events: Sequence[EventView]) -> None:
    """The steps of a run's secure sums: what clients send in each, and how long it took, from its log."""
    seconds: dict[str, list[float]] = {step: [] for step in _STEPS}
    step, since = "", None
    for event in events:
        if event.kind in ("step_opened", "round_closed") and since is not None:
            seconds[step].append((event.at - since).total_seconds())
        if event.kind in ("round_opened", "step_opened"):
            step, since = event.detail.get("step", "advertise"), event.at
        elif event.kind in ("round_closed", "round_abandoned"):
            since = None
    rows = (
        (name, words, str(len(taken)), f"{statistics.fmean(taken):.2f}" if taken else "")
        for (name, words), taken in zip(_STEPS.items(), seconds.values(), strict=True)
    )
    title = "Steps of the secure sums: that over all trainers, then one a round"
    _print_table(title, "step", "what clients send", "sums", "seconds (mean)", rows=rows)


def print_sums(totals: SumTotals | None, round: RoundView) -> None:
    """All that the coordinator knows of a secure run's trainers and of a round's updates."""
    rows: list[tuple[str, str]] = []
    if totals is not None:
        rows += [
            ("trainers in the first sum", str(totals.clients)),
            ("N, their examples", str(totals.examples)),
            ("D, their discrepancies", f"{totals.discrepancy:.4f}"),
        ]
    if round.secure is not None:
        rows += [
            (f"updates in the sum of round {round.round}", str(round.secure.survivors)),
            ("sum of their scores", _format_share(round.secure.score)),
            ("numbers cut to secure.clip", str(round.secure.clipped)),
        ]
    _print_table("All that the coordinator knows: sums", "sum", "value", rows=rows)


def print_accuracy(evaluation: EvaluationView, title: str) -> None:
    rows = [(name, _format_percent(value)) for name, value in evaluation.per_category.items()]
    rows.append(("all", _format_percent(evaluation.accuracy)))
    _print_table(title, "category", "accuracy", rows=rows)


def find_newest(rounds: Sequence[RoundView]) -> RoundView | None:
    """The last completed round."""
    done = [view for view in rounds if view.status is RoundStatus.COMPLETED and view.round]
    return max(done, key=lambda view: view.round, default=None)


def print_run(run: RunView, rounds: Sequence[RoundView]) -> None:
    say(f"{run.run}  {run.status.value}  {run.completed_rounds}/{format_count(run.rounds, 'round')}", "bold")
    if run.reason and run.reason not in run.waiting_for:
        say(run.reason)
    if waits := describe_wait(run):
        say(waits)
    _print_table(
        "Enrolled",
        *("client", "role", "status", "index", "examples", "d_k", "which is", "last error"),
        rows=(
            (
                e.client,
                e.role.value,
                e.status.value,
                "" if e.index is None else str(e.index),
                "" if run.config.secure is not None and e.role is Role.TRAINER else str(e.examples),
                _format_share(e.discrepancy),
                "" if e.discrepancy is None else e.disclosed,
                e.last_error or e.reason or "",
            )
            for e in run.enrolments
        ),
    )
    if last := find_newest(rounds):
        if last.secure is not None:
            print_sums(run.totals, last)
        else:
            print_ledger(last.ledger, f"Ledger of round {last.round}")
            _say_ratio(run, last)
        for evaluation in last.evaluations:
            print_accuracy(evaluation, f"Round {last.round}, scored by {evaluation.client}")


def _say_ratio(run: RunView, last: RoundView) -> None:
    """How large the round's updates were, if the run has them packed."""
    sizes = [row.bytes for row in last.ledger if row.bytes]
    ratio = run.find_ratio(last.round, sum(sizes) // len(sizes)) if sizes else None
    if ratio is not None and run.config.compression is not None:
        say(f"Updates by {run.config.compression.label}: {sum(sizes)} bytes, whole {ratio:.1f} times that")


def follow(client: AdminClient, run: str, report: Callable[[str], None] = say) -> RunStatus:
    """Print a line for every round as it is scored, until the run has ended and its last round is scored.

    Returns the run's final status.
    """
    said: set[int] = set()
    waiting = ""
    scores_due_at = time.monotonic() + 30
    while True:
        view = client.run(run)
        # scores come in the order of the rounds: those before the last one said are of no more use
        rounds = client.rounds(run, max(said, default=0)) if view.config.evaluate_every else []
        for line in _format_rounds(rounds, view.rounds, said):
            report(line)
            scores_due_at = time.monotonic() + 30  # an evaluator that is behind goes on after the last round
        if view.status.is_terminal:
            last = find_newest(rounds)
            if last is None or last.evaluations or time.monotonic() > scores_due_at:
                return view.status
        else:
            scores_due_at = time.monotonic() + 30
            if view.status is not RunStatus.RUNNING and view.waiting_for != waiting:
                waiting = view.waiting_for
                report(waiting)
        time.sleep(0.2)


def _format_rounds(rounds: Sequence[RoundView], total: int, said: set[int]) -> Iterable[str]:
    for view in sorted(rounds, key=lambda view: view.round):
        if view.round in said or not view.evaluations or view.status is not RoundStatus.COMPLETED:
            continue
        said.add(view.round)
        evaluation = view.evaluations[0]
        arrived = sum(row.included for row in view.ledger)
        yield (
            f"round {view.round:>3}/{total}  accuracy {_format_percent(evaluation.accuracy):>8}  "
            f"loss {_format_loss(evaluation.loss)}  {arrived} of {format_count(len(view.ledger), 'update')}"
        )
