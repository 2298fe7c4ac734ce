"""From a round's rows to the context of its page: the ledger, explained."""

from __future__ import annotations

import datetime as dt

from server.pages.assistance import assistance_sentence
from server.pages.charts import bar
from server.pages.contexts import LedgerLine, RoundPage
from server.pages.explain import (
    adjustment_sentence,
    cap_words,
    columns,
    fallback,
    formula,
    legend,
    measuring_sentence,
    rule_words,
    sentence,
    step_sentence,
    travelling_sentence,
    weighting_name,
)
from server.pages.reader import Reader, stream_of
from server.pages.shadows import shadow_lines
from shared import outliers
from shared.problems import NotFound
from shared.schemas import LedgerRow, RoundView, RunView

__all__ = ["round_page"]


def round_page(
    store: Reader, name: str, number: int, now: dt.datetime, attempt: int | None = None
) -> RoundPage:
    """The page of one round: its newest attempt, or the one named.

    Raises NotFound for a round or an attempt that was never opened.
    """
    latest = store.latest_event_id(name)
    run = store.run_view(name, now)
    newest = store.round_view(name, number)
    if attempt is not None and not 1 <= attempt <= newest.attempt:
        raise NotFound(
            f"Round {number} of run {name} has no attempt {attempt}.",
            hint=f"Its attempts are 1 to {newest.attempt}.",
        )
    shown = newest if attempt in (None, newest.attempt) else store.round_view(name, number, attempt)
    weighting = run.config.weighting
    longest = max((max(row.weight or 0, row.size_weight or 0) for row in shown.ledger), default=0.0)
    found = outliers.find_outliers(shown.ledger)
    return RoundPage(
        title=f"Round {number} · {name}",
        now=now,
        events=stream_of(run, latest),
        run=run,
        round=shown,
        seconds=(shown.completed_at - shown.opened_at).total_seconds() if shown.completed_at else None,
        columns=tuple(column.title for column in columns(weighting)),
        weighting=weighting_name(weighting),
        formula=formula(weighting),
        legend=legend(weighting),
        adjustment=adjustment_sentence(shown.adjustment),
        fallback=fallback(shown.ledger, weighting),
        cap=cap_words(shown.ledger, run.config.max_weight),
        rule=rule_words(run.config.aggregation),
        measures=measuring_sentence(run.config, number),
        travels=travelling_sentence(run.config, number),
        assistance=assistance_sentence(run.config, shown),
        outlier_rule=outliers.RULE,
        lines=tuple(_line(row, shown, run, longest, found.get(row.index)) for row in shown.ledger),
        shadows=shadow_lines(run, shown),
        longest=longest,
        step=step_sentence(shown),
        arrived=sum(row.update is not None for row in shown.ledger),
        attempts=tuple(store.round_view(name, number, earlier) for earlier in range(1, newest.attempt)),
        previous=number - 1 if number > _first(run) else None,
        next=number + 1 if number < _last(run) else None,
    )


def _name_start(row: LedgerRow, run: RunView) -> str:
    """Whose model the client went on from, where models travel."""
    if row.started_from is None:
        return "the average"
    names = (each.client for each in run.enrolments if each.index == row.started_from)
    return f"the model of {next(names, f'client #{row.started_from}')}"


def _first(run: RunView) -> int:
    """A secure run begins with the sum over all trainers, round 0."""
    return 1 if run.config.secure is None else 0


def _last(run: RunView) -> int:
    return max(run.completed_rounds, run.current_round.round if run.current_round else 0)


def _line(row: LedgerRow, round: RoundView, run: RunView, longest: float, outlier: str | None) -> LedgerLine:
    weighting = run.config.weighting
    known = row.weight is not None and row.size_weight is not None
    return LedgerLine(
        row=row,
        weight_bar=bar(row.weight, longest),
        size_bar=bar(row.size_weight, longest),
        difference=(row.weight or 0.0) - (row.size_weight or 0.0) if known else None,
        values=tuple(column.value(row) for column in columns(weighting)),
        sentence=sentence(row, round.ledger, weighting),
        outlier=outlier,
        ratio=run.find_ratio(round.round, row.bytes),
        begun_with=_name_start(row, run),
    )
