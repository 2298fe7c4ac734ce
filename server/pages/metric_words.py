"""Scores beside accuracy and loss, for the pages: names in words, charts, the confusion matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from server.pages.charts import LineChart, line_chart
from server.pages.contexts import ConfusionCell, ConfusionTable
from server.pages.words import number, percent
from shared.metric_names import CONFUSION
from shared.schemas import EvaluationView
from shared.scores import is_lower_better

__all__ = ["confusion_tables", "metric_charts", "name_metric", "write_metric"]

_WORDS = {
    "auroc": "AUROC",
    "cohen_kappa": "Cohen's kappa",
    "f1": "F1",
    "macro_f1": "macro F1",
    "weighted_f1": "weighted F1",
}
_SHARES = ("accuracy", "balanced_accuracy", "precision", "sensitivity", "specificity")
"""Shares of examples, written in per cent; all others are numbers."""


def name_metric(name: str) -> str:
    """In words.

    >>> name_metric("sensitivity:melanoma"), name_metric("macro_f1")
    ('sensitivity, melanoma', 'macro F1')
    """
    kind, _, label = name.partition(":")
    words = _WORDS.get(kind, kind.replace("_", " "))
    return f"{words}, {label}" if label else words


def write_metric(name: str) -> Callable[[float], str]:
    """How its values are written."""
    return percent if name.partition(":")[0] in _SHARES else number


def metric_charts(
    evaluations: Sequence[EvaluationView], metrics: Sequence[str], rounds: int, *, from_zero: bool = False
) -> tuple[LineChart, ...]:
    """A chart for each metric that an evaluation has, with a curve an evaluator."""
    found = []
    for place, name in enumerate(metrics):
        curves: dict[str, list[tuple[int, float]]] = {}
        for evaluation in evaluations:
            if name in evaluation.extra:
                curves.setdefault(evaluation.client, []).append((evaluation.round, evaluation.extra[name]))
        write, title = write_metric(name), name_metric(name)
        found.append(
            line_chart(
                f"metric-{place}",
                f"{title[:1].upper()}{title[1:]} by round",
                curves,
                write=write,
                tick=_percent_tick if write is percent else _plain_tick,
                last_round=rounds,
                best="lowest" if is_lower_better(name) else "highest",
                from_zero=from_zero,
            )
        )
    return tuple(chart for chart in found if chart is not None)


def _percent_tick(value: float) -> str:
    return f"{100 * value:g}\u202f%"


def _plain_tick(value: float) -> str:
    return f"{value:g}"


def confusion_tables(
    evaluations: Sequence[EvaluationView], classes: Sequence[str], metrics: Sequence[str]
) -> tuple[ConfusionTable, ...]:
    """Of each evaluator the newest, if the run asks for it."""
    if CONFUSION not in metrics:
        return ()
    newest: Mapping[str, EvaluationView] = {e.client: e for e in evaluations if e.confusion is not None}
    return tuple(_table(evaluation, classes) for _, evaluation in sorted(newest.items()))


def _table(evaluation: EvaluationView, classes: Sequence[str]) -> ConfusionTable:
    rows = zip(classes, evaluation.confusion or (), strict=False)
    return ConfusionTable(
        evaluator=evaluation.client,
        round=evaluation.round,
        classes=classes,
        rows=tuple(
            (
                name,
                tuple(
                    ConfusionCell(share=share, level=min(9, int(10 * share)), is_right=column == place)
                    for column, share in enumerate(row)
                ),
            )
            for place, (name, row) in enumerate(rows)
        ),
    )
