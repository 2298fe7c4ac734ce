"""Draws the state machine from its tables: ``docs/round.svg`` and the diagrams in ``docs/architecture.md``.

Run it from the root after a change of ``server/lifecycle/tables.py``::

    python docs/make_diagrams.py
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from server.lifecycle import tables  # noqa: E402 - the checkout's own, wherever the script is called from

Edges = dict[tuple[str | None, str], list[str]]
"""(before, after) -> the events' names; before None: where it begins."""

BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW, MARGIN, LEGEND_LINE = 112, 34, 190, 70, 24, 17
WIDTH = 960


def edges_of(moves: tables.Moves[tables.S], start: str | None = None) -> Edges:
    """The table with names in place of types; ``start``: the first status, where the table has no birth."""
    edges: Edges = {} if start is None else {(None, start): []}
    for (before, after), causes in moves.items():
        key = (None if before is None else str(before), str(after))
        edges[key] = [cause.__name__ for cause in causes]
    return edges


MACHINES: dict[str, Edges] = {
    "run": edges_of(tables.RUN_MOVES, start="enrolling"),
    "round": edges_of(tables.ROUND_MOVES),
    "participant": edges_of(tables.PARTICIPANT_MOVES),
    "enrolment": edges_of(tables.ENROLMENT_MOVES),
}


# -------------------------------------------------------------------- mermaid


def mermaid(edges: Edges) -> str:
    """A ``stateDiagram-v2`` in which every arrow names the events that can cause it."""
    lines = ["stateDiagram-v2"]
    for (before, after), causes in edges.items():
        # long lists are those of the birth of a round; the tables have them in full
        label = "<br/>".join(causes) if len(causes) <= 5 else f"{len(causes)} events, see tables.py"
        lines.append(f"    {before or '[*]'} --> {after}" + (f" : {label}" if label else ""))
    finals = statuses(edges) - {before for before, _ in edges if before}
    lines += [f"    {status} --> [*]" for status in sorted(finals)]
    return "\n".join(lines)


def with_diagrams(page: str) -> str:
    """The page with the text between its ``diagram`` markers renewed."""
    for name, edges in MACHINES.items():
        block = f"<!-- diagram: {name} -->\n```mermaid\n{mermaid(edges)}\n```\n<!-- end -->"
        place = re.compile(rf"<!-- diagram: {name} -->.*?<!-- end -->", re.DOTALL)
        page, found = place.subn(block, page)  # names hold no backslash
        if found != 1:
            raise SystemExit(f"architecture.md needs one place '<!-- diagram: {name} --><!-- end -->'")
    return page


# -------------------------------------------------------------------- layout


def statuses(edges: Edges) -> set[str]:
    return {status for pair in edges for status in pair if status is not None}


def columns(edges: Edges) -> dict[str, int]:
    """Longest way from the beginning, arrows back left out; a status's column in the picture."""
    column: dict[str, int] = {}

    def visit(status: str, depth: int, path: tuple[str, ...]) -> None:
        if status in path or column.get(status, -1) >= depth:
            return
        column[status] = depth
        for before, after in edges:
            if before == status:
                visit(after, depth + 1, (*path, status))

    for before, after in edges:
        if before is None:
            visit(after, 0, ())
    return column


@dataclass(frozen=True)
class Box:
    status: str
    column: int
    x: float
    y: float

    @property
    def right(self) -> float:
        return self.x + BOX_WIDTH

    @property
    def middle(self) -> float:
        return self.x + BOX_WIDTH / 2

    @property
    def centre(self) -> float:
        return self.y + BOX_HEIGHT / 2

    @property
    def bottom(self) -> float:
        return self.y + BOX_HEIGHT


def boxes(edges: Edges, top: float) -> tuple[dict[str, Box], float]:
    """A box for each status below ``top``, columns centred; and the height that they take."""
    column = columns(edges)
    members: dict[int, list[str]] = {}
    for status, number in column.items():
        members.setdefault(number, []).append(status)
    height = max(len(rows) for rows in members.values()) * ROW
    placed = {}
    for number, rows in members.items():
        first = top + (height - len(rows) * ROW) / 2 + (ROW - BOX_HEIGHT) / 2
        for row, status in enumerate(rows):
            placed[status] = Box(status, number, MARGIN + 30 + number * COLUMN, first + row * ROW)
    return placed, height


# -------------------------------------------------------------------- SVG


def arrow(a: Box, b: Box, arc: float) -> tuple[str, float, float]:
    """The path from a to b, and where its number goes; ``arc``: how far a long one swings out."""
    if b.column == a.column + 1:
        half = (b.x - a.right) / 2
        start, turn = a.centre - 9, a.right + half
        path = f"M{a.right} {start} C{turn} {start} {turn} {b.centre - 3} {b.x} {b.centre - 3}"
        return path, turn, (start + b.centre - 3) / 2
    if b.column < a.column:
        path = f"M{a.x} {a.centre + 12} L{b.right} {b.centre + 12}"
        return path, (a.x + b.right) / 2, (a.centre + b.centre) / 2 + 12
    above = b.centre <= a.centre
    start, end = (a.y, b.y) if above else (a.bottom, b.bottom)
    turn = min(start, end) - arc if above else max(start, end) + arc
    path = f"M{a.middle} {start} C{a.middle} {turn} {b.middle} {turn} {b.middle} {end}"
    return path, (a.middle + b.middle) / 2, (start + end) / 8 + turn * 0.75


def panel(name: str, edges: Edges, top: float) -> tuple[list[str], float]:
    """The picture of one table with its numbered legend, and where the next one may begin."""
    arcs = 46.0
    placed, height = boxes(edges, top + 34 + arcs)
    parts = [f'<text class="name" x="{MARGIN}" y="{top + 18}">{name}</text>']
    legend = []
    for number, ((before, after), causes) in enumerate(edges.items()):
        b = placed[after]
        if before is None:
            parts.append(f'<circle class="start" cx="{b.x - 30}" cy="{b.centre}" r="5"/>')
            parts.append(f'<path class="arrow" d="M{b.x - 25} {b.centre} L{b.x} {b.centre}"/>')
        else:
            path, x, y = arrow(placed[before], b, arcs + 12 * (number % 3))
            parts.append(f'<path class="arrow" d="{path}"/>')
            parts.append(f'<circle class="badge" cx="{x}" cy="{y}" r="9"/>')
            parts.append(f'<text class="number" x="{x}" y="{y + 3.5}">{number}</text>')
        if causes:
            way = f"{before} → {after}" if before else f"→ {after}"
            legend.append(f"{number if before else ''}  {way}:  {', '.join(causes)}")
    for box in placed.values():
        parts.append(f'<rect x="{box.x}" y="{box.y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        parts.append(f'<text class="status" x="{box.middle}" y="{box.centre + 4}">{box.status}</text>')
    line = top + 34 + 2 * arcs + height + 20
    for row in [part for text in legend for part in wrapped(text)]:
        parts.append(
            f'<text class="legend" xml:space="preserve" x="{MARGIN}" y="{line}">{escape(row)}</text>'
        )
        line += LEGEND_LINE
    return parts, line + 14


def wrapped(text: str, limit: int = 118) -> list[str]:
    """The legend's line, broken at a comma where it is longer than the picture is wide."""
    if len(text) <= limit:
        return [text]
    cut = text.rindex(", ", 0, limit) + 1
    return [text[:cut], *wrapped("       " + text[cut + 1 :], limit)]


STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1c2733 }
.name { font-size: 16px; font-weight: 600 }
.status, .number { text-anchor: middle }
.number { font-size: 10px }
.legend { font-size: 11.5px; fill: #44515e }
rect { fill: #eef3f8; stroke: #44515e }
.arrow { fill: none; stroke: #44515e; stroke-width: 1.3; marker-end: url(#head) }
.badge { fill: #ffffff; stroke: #9aa7b4 }
.start { fill: #44515e }
"""


def svg(names: tuple[str, ...] = ("run", "round", "participant")) -> str:
    """Run, round and participant, one below the other."""
    parts: list[str] = []
    height = 12.0
    for name in names:
        drawn, height = panel(name, MACHINES[name], height)
        parts += drawn
    size = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
    head = f'<marker id="head" {size} orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
            "<title>How a run, its rounds and their participants go on</title>",
            f"<style>{STYLE}</style>",
            f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="#44515e"/></marker></defs>',
            '<rect x="0" y="0" width="100%" height="100%" style="fill:#ffffff;stroke:none"/>',
            *parts,
            "</svg>\n",
        ]
    )


def rendered() -> dict[Path, str]:
    """Every file that is made from the tables, as it should be."""
    page = DOCS / "architecture.md"
    return {
        DOCS / "round.svg": svg(),
        page: with_diagrams(page.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")
