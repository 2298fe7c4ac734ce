"""A run's charts as files: SVG that stands alone, and the numbers as CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json

from jinja2 import Environment

from server.pages.charts import LineChart
from server.pages.losses import TrainingLosses
from server.pages.reader import Reader
from server.pages.run_page import charts_of
from shared.problems import NotFound

__all__ = ["find_chart", "write_csv", "write_svg"]

WIDTH, HEIGHT = 760, 400
ROOM_FOR_A_NAME = 20
COLOURS = (
    ("#0b6661", ""),
    ("#8a4b12", "6 4"),
    ("#4a4f9c", "2 4"),
    ("#7a2f63", "10 4 2 4"),
    ("#5c6210", "12 3"),
    ("#17608f", "3 2 8 2"),
)
"""As on the pages, in their light colours: a file is printed, or stands on paper."""


def find_chart(
    store: Reader, losses: TrainingLosses, run: str, chart: str, now: dt.datetime, *, from_zero: bool
) -> LineChart:
    """Raises NotFound for a run or a chart that is not there."""
    for found in charts_of(store, losses, run, now, from_zero=from_zero):
        if found.id == chart:
            return found
    raise NotFound(f"Run {run} has no chart {chart[:40]!r}.", hint="Its page links to those that it has.")


def write_svg(environment: Environment, chart: LineChart) -> str:
    height = HEIGHT + ROOM_FOR_A_NAME * len(chart.curves)
    template = environment.get_template("chart.svg")
    return template.render(chart=chart, width=WIDTH, height=height, colours=COLOURS)


def write_csv(chart: LineChart) -> str:
    """A line a round, a column a curve; no number where a curve has none."""
    columns = {
        curve.name: {point[0]: point[4] for point in json.loads(curve.readings)} for curve in chart.curves
    }
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["round", *map(_plain, columns)])
    for number in sorted({number for column in columns.values() for number in column}):
        writer.writerow([number, *(column.get(number, "") for column in columns.values())])
    return out.getvalue()


def _plain(name: str) -> str:
    """A client's name that begins like a formula is none to a spreadsheet."""
    return f"'{name}" if name[:1] in "=+-@\t" else name
