"""The page and the figure of the numerical simulation of the bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.figures import save
from experiments.report import heading, table_rows
from experiments.tables import Table
from experiments.theory import EXAMPLE, PUBLISHED, Trace, descend, dinkelbach

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["theory_page"]

SMALL = 0.05
"""A lambda for which the original bound ends above its start."""


def theory_page(table: Table, folder: Path) -> str:
    """The Markdown of the page; writes the figure into ``folder``. Takes no time: nothing is trained."""
    trade_off = EXAMPLE.original(EXAMPLE.n)
    good, small = descend(EXAMPLE, trade_off), descend(EXAMPLE, SMALL)
    steps = tuple(range(0, 401, 4))
    curves = {
        "O at the start": descend(EXAMPLE, trade_off, steps),
        f"{SMALL:g}": descend(EXAMPLE, SMALL, steps),
    }
    save(folder, "theory", "Original bound by gradient step", lambda axes: _paint(axes, curves))
    a, b = EXAMPLE.coefficients(trade_off)
    best = EXAMPLE.original(EXAMPLE.minimiser(trade_off))
    lines = [
        *heading(table),
        "Ours: ten clients as CIFAR-10 is dealt with seed 0, L = 1, eta = 0.03, tau = 10, T = 100, "
        "F_0 - F_inf = 2.3, B = 1, sigma^2 = 1.",
        "",
        f"## lambda = O at the start = {trade_off:.6f}",
        "",
        *_rows(good),
        "",
        f"## lambda = {SMALL:g}, too small",
        "",
        *_rows(small),
        "",
        "## As printed",
        "",
        *table_rows(
            ["bound", "", *map(str, good.steps)],
            [[name, "", *(f"{value:.4f}" for value in row)] for name, row in PUBLISHED.items()],
        ),
        "",
        f"The reformulated bound is least at `p_k ~ n_k - a d_k + b` with a = {a:.6f} and b = {b:.6f}; there "
        f"the original bound is {best:.9f}, and the least it can be is {dinkelbach(EXAMPLE):.9f}. "
        "The reformulated bound falls geometrically, as both printed rows do.",
        "",
        "![theory.svg](theory.svg)",
    ]
    return "\n".join(lines) + "\n"


def _rows(trace: Trace) -> list[str]:
    rows = [("reformulated", trace.reformulated), ("original", trace.original)]
    return table_rows(
        ["bound", "", *map(str, trace.steps)],
        [[name, "", *(f"{value:.8f}" for value in values)] for name, values in rows],
    )


def _paint(axes: Axes, curves: dict[str, Trace]) -> None:
    for name, trace in curves.items():
        axes.plot(trace.steps, [1e5 * (value - trace.original[0]) for value in trace.original], label=name)
    axes.set(xlabel="gradient step", ylabel="change of O, 1e-5")
    axes.legend(title="lambda", fontsize=8)
