"""``docs/results.md``: what was measured so far, with pictures, and the state of every table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.evidence import Evidence, Gain
from experiments.figures import pictures
from experiments.report import GAIN_HEADER, capitalise, gain_numbers, headline_rows, progress, table_rows
from experiments.tables import BASE, Table, methods, settings

__all__ = ["Entry", "overview"]

INTRODUCTION = Path(__file__).with_name("overview.md")


@dataclass(frozen=True)
class Entry:
    """A table, its state and why; ``evidence`` where it is made of runs."""

    table: Table
    state: str
    why: str
    evidence: Evidence | None = None


def overview(entries: Sequence[Entry]) -> str:
    """The page; every number in it is computed from the curves of ``entries``."""
    evidence = [entry.evidence for entry in entries if entry.evidence is not None]
    states = [[f"[{e.table.title}](results/{e.table.name}.md)", e.state, e.why] for e in entries]
    introduction, explained = INTRODUCTION.read_text(encoding="utf-8").split("\n\n## ", 1)
    parts = [introduction, "", *_headlines(evidence), f"## {explained}"]
    parts += [*_measured(evidence), *_pictures(evidence)]
    parts += ["## Every table", "", *table_rows(["table", "state", "how much"], states, words=3), ""]
    return "\n".join(parts)


def _headlines(evidence: Sequence[Evidence]) -> list[str]:
    """Of each table that is to come first: what it is, and FedAvg's rows beside the published ones."""
    parts: list[str] = []
    for each in evidence:
        table = each.table
        if not table.headline:
            continue
        state = each.state()
        parts += [f"## {table.title}: {state}", "", f"The paper: {table.claim} {table.note.strip()}", ""]
        parts += headline_rows(each) if state != "not yet run" else [_published_alone(each), ""]
        parts += [
            f"The whole table: [{table.name}](results/{table.name}.md). {capitalise(progress(each))}",
            "",
        ]
    return parts


def _published_alone(each: Evidence) -> str:
    """What there is to compare with, while nothing was run."""
    table, (method, *_) = each.table, each.table.methods
    first = table.published_figure(table.settings[0], method, table.weightings_of(method)[0])
    tuned = table.published_figure(table.settings[0], method, table.tuned)
    if first is None or tuned is None:
        return "Nothing of it was run yet."
    return (
        f"Nothing of it was run yet. Published with {methods()[method].title}: {first.value:.2f} % without "
        f"and {tuned.value:.2f} % with Disco."
    )


def _measured(evidence: Sequence[Evidence]) -> list[str]:
    rows = [_row(table, gain) for table, gain in _comparisons(evidence)]
    if not rows:
        return []
    header = ["setting", "method", "without", "with Disco", *GAIN_HEADER, "Disco is"]
    explained = (
        "*Without* and *with Disco* are the mean of the last ten rounds and of the seeds in %, over the "
        "rounds and seeds that both have (Facebook comments: test loss, so less is better)."
    )
    title = "## Without and with Disco, as far as it was run"
    return [title, "", explained, "", *table_rows(header, rows), ""]


def _comparisons(evidence: Sequence[Evidence]) -> list[tuple[Table, Gain]]:
    """Each method in each setting once, though several tables may have it: where the paper has a figure."""
    found: dict[tuple[str, str], tuple[Table, Gain]] = {}
    for table, gain in _against_base(evidence):
        place = gain.cell.setting, gain.cell.method
        if place not in found or (found[place][1].published is None and gain.published is not None):
            found[place] = (table, gain)
    places = [(setting, method) for setting in settings() for method in methods()]
    return [found[place] for place in places if place in found]


def _against_base(evidence: Sequence[Evidence]) -> Iterator[tuple[Table, Gain]]:
    """Disco against what the method has without it, where accuracy or loss is compared."""
    for each in evidence:
        if each.table.measure not in ("last_ten", "loss"):
            continue
        for gain in each.gains:
            first = each.table.weightings_of(gain.cell.method)[0]
            disco = each.table.chosen if each.table.tune else "disco"
            if (first, gain.cell.weighting) == (BASE, disco):
                yield each.table, gain


def _row(table: Table, gain: Gain) -> list[str]:
    setting = f"[{settings()[gain.cell.setting].title}](results/{table.name}.md)"
    means = [f"{gain.without:.2f}", f"{gain.with_it:.2f}"]
    return [setting, methods()[gain.cell.method].title, *means, *gain_numbers(table, gain)]


def _pictures(evidence: Sequence[Evidence]) -> list[str]:
    """Of each table that has results, its curves."""
    parts = []
    for each in evidence:
        for name in pictures(each, "curves"):
            parts += [f"![{each.table.title}: {name}](results/{name})", ""]
    return parts
