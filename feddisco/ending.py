"""Runs after their end, from the console: put away, deleted, pruned."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence

from feddisco.admin import AdminClient
from shared.problems import InvalidConfiguration
from shared.schemas import DeletedRun, Erasure, RunSummary
from shared.texts import format_count

__all__ = ["delete_runs", "describe_erasure", "describe_run", "list_older", "parse_age"]

_UNITS = {"": 86400, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> dt.timedelta:
    """``90d``, ``12h``, ``4w``; a number alone is days. Raises :class:`InvalidConfiguration`.

    >>> parse_age("4w")
    datetime.timedelta(days=28)
    """
    found = re.fullmatch(r"(\d{1,5})([hdw]?)", text)
    if found is None:
        raise InvalidConfiguration(f"{text!r} is no age.", hint="Write it like 90d, 12h or 4w.")
    return dt.timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def list_older(client: AdminClient, age: dt.timedelta, now: dt.datetime) -> list[RunSummary]:
    """Runs that ended longer ago than that, oldest first; those that were put away are kept."""
    ended = [(run.finished_at, run.run, run) for run in client.runs() if run.finished_at is not None]
    return [run for at, _, run in sorted(ended, key=lambda each: each[:2]) if now - at > age]


def describe_run(run: RunSummary) -> str:
    ended = "not ended" if run.finished_at is None else f"ended {run.finished_at:%Y-%m-%d %H:%M} UTC"
    rounds = f"{run.completed_rounds} of {format_count(run.rounds, 'round')}"
    return f"{run.run}: {run.status.value}, {rounds}, {ended}"


def delete_runs(
    client: AdminClient, runs: Sequence[str], reason: str, confirm: Callable[[str], object] | None
) -> Iterator[str]:
    """Delete the runs; yields a sentence for each. ``confirm`` raises if the operator does not want it."""
    if confirm is not None:
        what = f"run {runs[0]}" if len(runs) == 1 else f"these {len(runs)} runs"
        confirm(f"Delete {what} for good: models, updates, ledgers, scores and log?")
    for run in runs:
        yield _describe_deletion(client.delete_run(run, reason))


def describe_erasure(client: str, erasure: Erasure) -> str:
    if erasure.name is not None:
        return f"{client} is erased. Its numbers in ledgers are those of {erasure.name} now."
    rounds = "; ".join(erasure.waiting_for)
    return f"{client} is revoked, and erased as soon as its last update is counted: {rounds}."


def _describe_deletion(deleted: DeletedRun) -> str:
    record = deleted.record
    return (
        f"Run {deleted.run} is deleted. A record of it is kept: configuration, clients, mean weights, the "
        f"digests of {len(record.models)} models. Files that were stored in the last minutes follow soon."
    )
