"""``feddisco plot``: result files of simulations as curves, seeds of like runs as mean and band."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from feddisco.result_tables import Row, tabulate_rounds
from shared.problems import InvalidConfiguration

__all__ = ["find_series", "plot"]

Curve = Mapping[int, list[float]]
"""Values by round, of one or more runs."""
FORMATS = (".svg", ".png", ".pdf")


def find_series(rows: Sequence[Row], measure: str, settings: Sequence[str]) -> dict[str, Curve]:
    """Like runs, which differ in nothing but the seed, by what sets them apart from the others."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row.get(measure) is None:
            continue
        name = ", ".join(f"{each.rpartition('.')[2]} {_say(row[each])}" for each in settings)
        found.setdefault(name or str(row["run"]), {}).setdefault(row["round"], []).append(row[measure])
    return dict(found)


def _say(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plot(paths: Sequence[Path], out: Path, measure: str = "accuracy") -> list[str]:
    """Draw a score by round into an SVG, PNG or PDF file; returns the names of the curves.

    Raises:
        InvalidConfiguration: another kind of file, or no round has this score.
    """
    if out.suffix not in FORMATS:
        raise InvalidConfiguration(f"{out}: a plot is written as {', '.join(FORMATS)}.")
    table = tabulate_rounds(paths)
    first = table.columns.index("round") if table.rows else 0
    results = set(table.columns[first + 1 :])
    scores = {name for row in table.rows for name in results if _is_number(row.get(name))}
    if measure not in scores:
        known = ", ".join(sorted(scores - {"seconds"})) or "none"
        raise InvalidConfiguration(f"No round has the score {measure!r}.", hint=f"There are: {known}.")
    series = find_series(table.rows, measure, table.columns[2:first])
    _draw(series, out, measure)
    return list(series)


def _draw(series: Mapping[str, Curve], out: Path, measure: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, curve in series.items():
        rounds = sorted(curve)
        mean = [statistics.fmean(curve[number]) for number in rounds]
        (line,) = axes.plot(rounds, mean, label=name, linewidth=1.5)
        spread = [statistics.stdev(curve[n]) if len(curve[n]) > 1 else 0.0 for n in rounds]
        if any(spread):
            low = [m - s for m, s in zip(mean, spread, strict=True)]
            high = [m + s for m, s in zip(mean, spread, strict=True)]
            axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
