"""Writes the table of random faults in reliability.md from the results beside it.

``python docs/make_reliability.py``; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("reliability.md")
RESULTS = Path(__file__).with_name("reliability") / "faults.jsonl"
HEAD = (
    "| fault | SQLite | PostgreSQL | updates acknowledged | answers lost, sent again | violations "
    "| same last model |",
    "|---|---|---|---|---|---|---|",
)


def rendered() -> str:
    """The page with the table of today's results."""
    trials = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    faults = sorted({trial["fault"] for trial in trials})
    rows = [_row(fault.replace("_", " "), [t for t in trials if t["fault"] == fault]) for fault in faults]
    table = "\n".join((*HEAD, *rows, _row("all", trials)))
    page = PAGE.read_text(encoding="utf-8")
    return re.sub(r"(<!-- table: faults -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page, flags=re.S)


def _row(name: str, trials: Iterable[Mapping[str, Any]]) -> str:
    trials = list(trials)
    on = {kind: sum(trial["database"] == kind for trial in trials) for kind in ("sqlite", "postgresql")}
    updates, lost = (sum(trial[key] for trial in trials) for key in ("updates", "lost_answers"))
    violations = sum(len(trial["violations"]) for trial in trials)
    same = f"{sum(trial['is_same_model'] for trial in trials)} of {len(trials)}"
    return f"| {name} | {on['sqlite']} | {on['postgresql']} | {updates} | {lost} | {violations} | {same} |"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
