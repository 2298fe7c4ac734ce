"""The figures as SVG (text stays text) and PNG; the same results give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.plan import Cell, configuration
from experiments.tables import BASE, methods, settings
from shared import statistics
from shared.texts import format_count
from shared.weightings.base import Need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from experiments.evidence import Evidence
    from experiments.records import Curve, Round
    from experiments.tables import Figure, Table

__all__ = ["draw", "pictures", "save"]

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "feddisco",
    "font.family": "DejaVu Sans",
    "figure.figsize": (7.0, 4.2),
    "figure.dpi": 110,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
CROWD = 2
"""So many methods share a plot; of more, each gets its own."""
LINES = {BASE: "--", "sizes": "--", "uniform": ":"}


def draw(evidence: Evidence, folder: Path) -> list[str]:
    """Write the table's figures, as far as there are results; names of the SVG files."""
    for figure, setting, name in _plots(evidence):
        title = figure.title if setting is None else f"{figure.title}, {settings()[setting].title}"
        ran = [] if setting is None else _methods_of(evidence, setting)
        if figure.kind == "curves" and setting is not None and len(ran) > CROWD:
            plots = {methods()[m].title: partial(_accuracies, evidence, setting, method=m) for m in ran}
            _save_side_by_side(folder, name, title, plots)
        else:
            save(folder, name, title, _painter(figure, evidence, setting))
    return pictures(evidence)


def pictures(evidence: Evidence, kind: str | None = None) -> list[str]:
    """The names of the SVG files that :func:`draw` writes; those of one kind of figure only."""
    return [f"{name}.svg" for figure, _, name in _plots(evidence) if kind in (None, figure.kind)]


def _plots(evidence: Evidence) -> Iterator[tuple[Figure, str | None, str]]:
    for figure in evidence.table.figures:
        for setting in _panels(figure, evidence):
            yield figure, setting, "-".join(filter(None, (evidence.table.name, figure.kind, setting)))


def save(folder: Path, name: str, title: str, paint: Callable[[Axes], None]) -> None:
    """Paint one plot and write it as ``name.svg`` and ``name.png``, without date or version inside."""
    with _canvas(folder, name) as canvas:
        axes = canvas.add_subplot()
        axes.set_title(title, fontsize=10)
        paint(axes)


def _save_side_by_side(
    folder: Path, name: str, title: str, plots: Mapping[str, Callable[[Axes], None]]
) -> None:
    """Several plots with the same axes, two in a row, each with its name above."""
    rows = math.ceil(len(plots) / 2)
    with _canvas(folder, name, height=1.0 + 1.9 * rows) as canvas:
        canvas.suptitle(title, fontsize=10)
        places = canvas.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
        for axes, (above, paint) in zip(places.flat, plots.items(), strict=False):
            axes.set_title(above, fontsize=9)
            paint(axes)
            axes.label_outer()
        for axes in places.flat[len(plots) :]:
            axes.remove()


@contextmanager
def _canvas(folder: Path, name: str, height: float | None = None) -> Iterator[Canvas]:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        canvas = Figure(layout="constrained")
        if height is not None:
            canvas.set_figheight(height)
        FigureCanvasAgg(canvas)
        yield canvas
        canvas.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
        canvas.savefig(folder / f"{name}.png", metadata={"Software": None})


def _panels(figure: Figure, evidence: Evidence) -> list[str | None]:
    """The settings that get a plot of their own (levels: one plot over all); those with results only."""
    ran = [
        s for s in evidence.table.settings if any(c.setting == s and v for c, v in evidence.curves.items())
    ]
    if figure.kind == "levels":
        return [None] if ran else []
    if figure.kind == "heatmap":
        return [setting for setting in ran if any(g.cell.setting == setting for g in evidence.gains)]
    return list(ran)


def _painter(figure: Figure, evidence: Evidence, setting: str | None) -> Callable[[Axes], None]:
    if setting is None:
        return lambda axes: _levels(axes, figure, evidence)
    paint = {
        "curves": _accuracies,
        "variance": _variances,
        "heatmap": _heatmap,
        "categories": _categories,
        "needs": _needs,
    }
    return partial(paint[figure.kind], evidence, setting)


# ---------------------------------------------------------------- kinds


def _accuracies(evidence: Evidence, setting: str, axes: Axes, method: str | None = None) -> None:
    _by_round(axes, evidence, setting, lambda line: 100 * (line.accuracy or 0.0), method)
    axes.set_ylabel("test accuracy, %")
    if evidence.table.target_accuracy:
        axes.axhline(100 * evidence.table.target_accuracy, color="0.5", linewidth=0.8)


def _variances(evidence: Evidence, setting: str, axes: Axes) -> None:
    _by_round(axes, evidence, setting, lambda line: statistics.client_variance(line.per_client or (0.0,)))
    axes.set_ylabel("variance over clients, points squared")


def _by_round(
    axes: Axes, evidence: Evidence, setting: str, value: Callable[[Round], float], only: str | None = None
) -> None:
    """The mean over seeds of each cell (of one method only), as far as all of its seeds go."""
    for cell, curves in _of(evidence, setting):
        if only not in (None, cell.method):
            continue
        length = min(len(curve.rounds) for curve in curves)
        mean = np.mean([[value(line) for line in curve.rounds[:length]] for curve in curves], axis=0)
        color = f"C{_color(evidence.table, cell)}"
        style = LINES.get(cell.weighting, "-")
        label = _label(cell, len(curves)) if only is None else _seeds(cell.resolved, len(curves))
        axes.plot(range(1, length + 1), mean, style, color=color, linewidth=1.1, label=label)
    axes.set_xlabel("round")
    axes.legend(fontsize=6, ncol=2 if only is None else 1)


def _color(table: Table, cell: Cell) -> int:
    """One for each method; where a and b are tuned, one for each weighting of a method."""
    if table.tune is None:
        return table.methods.index(cell.method)
    return table.weightings_of(cell.method).index(cell.weighting)


def _levels(axes: Axes, figure: Figure, evidence: Evidence) -> None:
    for method in evidence.table.methods:
        for weighting in evidence.table.weightings_of(method):
            points = [
                (level, statistics.mean_and_deviation(list(values.values())))
                for level, setting in zip(figure.levels, evidence.table.settings, strict=True)
                if (values := evidence.values(Cell(setting, method, weighting)))
            ]
            axes.errorbar(
                [level for level, _ in points],
                [spread.mean for _, spread in points],
                [spread.deviation or 0.0 for _, spread in points],
                linestyle=LINES.get(weighting, "-"),
                marker="o",
                capsize=3,
                label=f"{methods()[method].title}, {weighting.partition('=')[0]}",
            )
    axes.set_xlabel(figure.label)
    axes.set_ylabel("test accuracy, %")
    axes.legend(fontsize=7)


def _heatmap(evidence: Evidence, setting: str, axes: Axes) -> None:
    """The gain of the first method that has one, in points."""
    grid = evidence.table.grid
    assert grid is not None
    method = next(g.cell.method for g in evidence.gains if g.cell.setting == setting)
    found = [[evidence.gain(Cell(setting, method, f"a{a:g}-b{b:g}")) for b in grid.b] for a in grid.a]
    gains = np.array([[np.nan if gain is None else gain.spread.mean for gain in row] for row in found])
    limit = float(np.nanmax(np.abs(gains))) or 1.0
    picture = axes.imshow(gains, cmap="RdBu", vmin=-limit, vmax=limit, origin="lower", aspect="auto")
    axes.set_xticks(range(len(grid.b)), [f"{b:g}" for b in grid.b])
    axes.set_yticks(range(len(grid.a)), [f"{a:g}" for a in grid.a])
    axes.set(xlabel="b", ylabel=f"a ({methods()[method].title})")
    axes.grid(visible=False)
    for (row, column), gain in np.ndenumerate(gains):
        axes.text(column, row, "" if np.isnan(gain) else f"{gain:+.1f}", ha="center", va="center", fontsize=7)
    axes.figure.colorbar(picture, ax=axes, label="gain, points")


def _categories(evidence: Evidence, setting: str, axes: Axes) -> None:
    """Accuracy of each category, mean of the last ten rounds and of the seeds, side by side."""
    found = _of(evidence, setting)
    width = 0.8 / len(found)
    for at, (cell, curves) in enumerate(found):
        heights = 100 * np.mean([_last_per_category(curve) for curve in curves], axis=0)
        places = np.arange(len(heights)) + (at - (len(found) - 1) / 2) * width
        axes.bar(places, heights, width, label=_label(cell, len(curves)))
    names = found[0][1][0].categories
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("test accuracy, %")
    axes.legend(fontsize=7)


LEVELS = {
    None: "sizes",
    Need.NUMBER: "one number",
    Need.COUNTS: "label counts",
    Need.START_LOSS: "losses",
    Need.END_LOSS: "losses",
    Need.UPDATES: "updates",
    Need.DATA: "data",
}
"""What has to be known, from the least to the most."""


def level_of(cell: Cell) -> str:
    """The most that the cell's weighting has to know.

    >>> level_of(Cell("cifar10-40-10", "fedavg", "qfedavg"))
    'updates'
    """
    needs = configuration(cell, 0).weighting.needs
    return LEVELS[max(needs, key=list(LEVELS).index, default=None)]


def _needs(evidence: Evidence, setting: str, axes: Axes) -> None:
    """The table's measure of each weighting over what it has to know, with its deviation over the seeds."""
    levels = list(dict.fromkeys(LEVELS.values()))
    drawn: dict[str, int] = dict.fromkeys(levels, 0)
    for at, (cell, _) in enumerate(_of(evidence, setting)):
        level, spread = level_of(cell), statistics.mean_and_deviation(list(evidence.values(cell).values()))
        place = levels.index(level) + 0.16 * (drawn[level] - 1.5)
        drawn[level] += 1
        axes.errorbar(place, spread.mean, spread.deviation or 0.0, marker="o", capsize=3, color=f"C{at % 10}")
        axes.annotate(
            cell.resolved, (place, spread.mean), xytext=(3, 3), textcoords="offset points", fontsize=6
        )
    axes.set_xticks(range(len(levels)), levels)
    axes.set_xlim(-0.6, len(levels) - 0.4)
    axes.set(xlabel="what has to be known of the clients", ylabel="test accuracy, %")


def _last_per_category(curve: Curve) -> Sequence[float]:
    rounds = [line.per_category for line in curve.rounds[-statistics.LAST :]]
    return [float(value) for value in np.mean(rounds, axis=0)]


def _of(evidence: Evidence, setting: str) -> list[tuple[Cell, list[Curve]]]:
    return [
        (cell, list(curves.values()))
        for cell, curves in evidence.curves.items()
        if cell.setting == setting and curves
    ]


def _methods_of(evidence: Evidence, setting: str) -> list[str]:
    """Those with results, in the table's order."""
    return list(dict.fromkeys(cell.method for cell, _ in _of(evidence, setting)))


def _label(cell: Cell, seeds: int) -> str:
    return _seeds(f"{methods()[cell.method].title}, {cell.resolved}", seeds)


def _seeds(text: str, seeds: int) -> str:
    return f"{text} ({format_count(seeds, 'seed')})"
