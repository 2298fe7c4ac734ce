"""Geometry of the pages' charts: numbers in, positions in per cent of the plot's area out.

The templates draw it as SVG on the server (``docs/decisions/0004``). Positions are per cent so that
a chart fills any width, from a phone to a wall, while its letters keep their size. As in SVG, ``x``
grows to the right and ``y`` grows *downwards*: the top of the plot is 0, its foot 100.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

__all__ = [
    "LARGEST",
    "Curve",
    "LineChart",
    "Mark",
    "Scale",
    "Tick",
    "bar",
    "line_chart",
    "nice_ticks",
    "whole_ticks",
]

LARGEST = 1e100
"""Values beyond are neither drawn nor compared: differences and squares of them have no number."""

MARKED = 40
"""Longest curve of which each point is drawn as a dot; a longer one shows its last point only."""

_EPSILON = 1e-9
_SMALLEST = 1e-300
"""What is less apart is one level: below it, powers of ten lose their digits."""


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of a curve; ``label`` says its numbers in words."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """``style`` numbers the curves: each has its own dash and shape, so that colour is not needed.

    ``band`` is the outline of the area around it, empty for none; a thin one stands behind the others.
    ``readings`` are all points as JSON, (round, x, y, value in words, value), for who reads them one by one.
    ``best`` is marked.
    """

    name: str
    style: int
    path: str
    marks: tuple[Mark, ...]
    last: str
    band: str = ""
    is_thin: bool = False
    readings: str = ""
    best: Mark | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    id: str
    title: str
    description: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low..high`` to 0..100 per cent; a scale without extent puts everything in the middle."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return 50.0
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    def down(self, value: float) -> float:
        """The same from the foot upwards: the largest value is at 0, the top."""
        return round(100 - self(value), 3)


def nice_ticks(low: float, high: float, most: int = 5) -> tuple[float, ...]:
    """At most ``most`` + 1 round values that enclose ``low..high``: steps of 1, 2 or 5 times a power of ten.

    Both ends lie within :data:`LARGEST`.

    >>> nice_ticks(0.12, 0.93)
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """
    farthest = max(abs(low), abs(high))
    if farthest < _SMALLEST:
        low, high = 0.0, 1.0
    elif high - low <= max(_EPSILON * farthest, _SMALLEST):  # one level: from zero to it
        low, high = min(low, 0.0), max(high, 0.0)
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 5, 10, 20):
        step = factor * unit
        first = math.floor(low / step + _EPSILON)
        last = math.ceil(high / step - _EPSILON)
        if last - first <= most:
            break
    digits = 1 - math.floor(math.log10(step))
    return tuple(round(index * step, digits) for index in range(first, last + 1))


def whole_ticks(low: int, high: int, most: int = 6) -> tuple[int, ...]:
    """At most ``most`` + 1 whole numbers from ``low`` to ``high``, evenly apart; rounds are never broken."""
    step = next(
        factor * 10**power
        for power in range(20)
        for factor in (1, 2, 5)
        if (high - low) / (factor * 10**power) <= most
    )
    first = -(-low // step) * step
    return tuple(range(first, high + 1, step))


def line_chart(
    id: str,
    title: str,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    *,
    write: Callable[[float], str],
    tick: Callable[[float], str],
    last_round: int = 0,
    bands: Mapping[str, Sequence[tuple[int, float, float]]] = MappingProxyType({}),
    thin: Collection[str] = (),
    best: Literal["highest", "lowest"] | None = None,
    from_zero: bool = False,
) -> LineChart | None:
    """Values by round, one curve a name. ``None`` when there is nothing to draw.

    ``write`` formats a value where it is read alone, ``tick`` beside the axis. The x axis begins at round
    0, the initial model, in every chart, and goes to ``last_round`` if that is further than the data: an
    unfinished run leaves room for the rounds to come. ``bands`` are (round, low, high) around a curve;
    ``thin`` are the names of curves that are drawn thin. ``best``: which value of a curve is marked.
    ``from_zero``: the y axis has the zero on it. Values beyond :data:`LARGEST` are left out.
    """
    curves = {name: [point for point in curve if _is_drawable(*point[1:])] for name, curve in curves.items()}
    bands = {name: [edges for edges in band if _is_drawable(*edges[1:])] for name, band in bands.items()}
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return None
    last = max(last_round, *(round for round, _ in points))
    values = [value for _, value in points]
    values += [edge for band in bands.values() for _, low, high in band for edge in (low, high)]
    values += [0.0] if from_zero else []
    levels = nice_ticks(min(values), max(values))
    across, up = Scale(0, last), Scale(levels[0], levels[-1])
    return LineChart(
        id=id,
        title=title,
        description=_describe(curves, write),
        x_ticks=tuple(Tick(across(at), str(at)) for at in whole_ticks(0, last)),
        y_ticks=tuple(Tick(up.down(at), tick(at)) for at in levels),
        curves=tuple(
            replace(
                _curve(name, style, sorted(curve), sorted(bands.get(name, ())), across, up, write),
                is_thin=name in thin,
                best=_find_best(name, sorted(curve), best, across, up, write) if name not in thin else None,
            )
            for style, (name, curve) in enumerate(curves.items())
            if curve
        ),
        from_zero=from_zero,
    )


def _is_drawable(*values: float) -> bool:
    return all(abs(value) <= LARGEST for value in values)  # so that NaN is not


def _find_best(
    name: str,
    points: Sequence[tuple[int, float]],
    best: Literal["highest", "lowest"] | None,
    across: Scale,
    up: Scale,
    write: Callable[[float], str],
) -> Mark | None:
    """The earliest of equals; nothing of a curve of one point."""
    if best is None or len(points) < 2:
        return None
    sign = 1 if best == "lowest" else -1
    round, value = min(points, key=lambda point: (sign * point[1], point[0]))
    return Mark(across(round), up.down(value), f"best of {name}: {write(value)} at round {round}")


def _curve(
    name: str,
    style: int,
    points: Sequence[tuple[int, float]],
    band: Sequence[tuple[int, float, float]],
    across: Scale,
    up: Scale,
    write: Callable[[float], str],
) -> Curve:
    marks = tuple(
        Mark(across(round), up.down(value), f"{name}, round {round}: {write(value)}")
        for round, value in points
    )
    return Curve(
        name=name,
        style=style,
        path=" ".join(f"{mark.x:g},{mark.y:g}" for mark in marks),
        marks=marks if len(marks) <= MARKED else marks[-1:],
        last=write(points[-1][1]),
        readings=json.dumps(
            [(n, mark.x, mark.y, write(v), v) for (n, v), mark in zip(points, marks, strict=True)],
            ensure_ascii=False,
            separators=(",", ":"),
        ),
        band=_outline(band, across, up),
    )


def _outline(band: Sequence[tuple[int, float, float]], across: Scale, up: Scale) -> str:
    """Along the upper edge, then back along the lower one."""
    upper = [(across(round), up.down(high)) for round, _, high in band]
    lower = [(across(round), up.down(low)) for round, low, _ in reversed(band)]
    return " ".join(f"{x:g},{y:g}" for x, y in upper + lower)


def _describe(curves: Mapping[str, Sequence[tuple[int, float]]], write: Callable[[float], str]) -> str:
    """The chart in words, for screen readers: where each curve begins and ends."""
    parts = []
    for name, curve in curves.items():
        if curve:
            (first, start), (last, end) = min(curve), max(curve)
            parts.append(f"{name}: {write(start)} at round {first}, {write(end)} at round {last}.")
    return " ".join(parts)


def bar(value: float | None, full: float) -> float:
    """Length of a bar in per cent of its room, 0..100; nothing for no value, and for a room of nothing."""
    if value is None or full <= 0 or math.isnan(value):
        return 0.0
    return round(100 * min(max(value / full, 0.0), 1.0), 3)
