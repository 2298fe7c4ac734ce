"""What other weightings would have made of a round, for the pages: curves, lines and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from server.pages.charts import bar
from server.pages.contexts import ShadowLine, WeightBar
from server.pages.explain import weighting_name
from server.pages.words import duration, percent, size
from shared.schemas import EvaluationView, RoundView, RunView, ShadowScore, ShadowView
from shared.scores import combine

__all__ = ["cost_of_shadows", "curves_of_shadows", "shadow_lines"]

Curve = list[tuple[int, ShadowScore]]


def curves_of_shadows(evaluations: Sequence[EvaluationView]) -> dict[str, Curve]:
    """Scores by round, a curve for each shadow and evaluator, who is named where there are several."""
    judges = {found.client for found in evaluations}
    curves: dict[str, Curve] = {}
    for found in evaluations:
        for name, score in found.shadows.items():
            of = f", {found.client}" if len(judges) > 1 else ""
            curves.setdefault(f"shadow {name}{of}", []).append((found.round, score))
    return curves


def cost_of_shadows(rounds: Sequence[RoundView]) -> str | None:
    """A sentence, of the newest round that has shadows; None: none has."""
    found = [round for round in rounds if round.shadows]
    if not found:
        return None
    newest = max(found, key=lambda round: (round.round, round.attempt))
    seconds = sum(shadow.seconds for shadow in newest.shadows)
    sent = sum(shadow.bytes or 0 for shadow in newest.shadows)
    return (
        "The thin curves are shadows: in each round the same updates under another weighting, scored only. "
        f"In round {newest.round} they cost the coordinator {duration(seconds)} and each evaluator a "
        f"download of {size(sent)}."
    )


def shadow_lines(run: RunView, round: RoundView) -> tuple[ShadowLine, ...]:
    """The run's own weighting, then the shadows; nothing for a round without any."""
    if not round.shadows:
        return ()
    own = combine([(e.accuracy, e.examples) for e in round.evaluations], run.config.combine_scores)
    clients = {row.index: row.client for row in round.ledger}
    weights = {row.index: row.weight for row in round.ledger if row.weight is not None}
    tallest = max([*weights.values(), *(p for s in round.shadows for p in s.weights.values())], default=0.0)
    first = ShadowLine(
        name=weighting_name(run.config.weighting),
        is_own=True,
        accuracy=own,
        difference=None,
        loss=combine([(e.loss, e.examples) for e in round.evaluations], run.config.combine_scores),
        bars=_bars(clients, weights, tallest),
        seconds=None,
        bytes=None,
        reason=None,
    )
    return (first, *(_line(run, round, shadow, own, clients, tallest) for shadow in round.shadows))


def _line(
    run: RunView,
    round: RoundView,
    shadow: ShadowView,
    own: float | None,
    clients: dict[int, str],
    tallest: float,
) -> ShadowLine:
    scored = [(e.shadows[shadow.name], e.examples) for e in round.evaluations if shadow.name in e.shadows]
    accuracy = combine([(s.accuracy, n) for s, n in scored], run.config.combine_scores)
    return ShadowLine(
        name=shadow.name,
        is_own=False,
        accuracy=accuracy,
        difference=None if accuracy is None or own is None else accuracy - own,
        loss=combine([(s.loss, n) for s, n in scored], run.config.combine_scores),
        bars=_bars(clients, shadow.weights, tallest),
        seconds=shadow.seconds,
        bytes=shadow.bytes,
        reason=shadow.reason,
    )


def _bars(clients: dict[int, str], weights: dict[int, float], tallest: float) -> tuple[WeightBar, ...]:
    """A bar a client in index order, as in the list of rounds."""
    room = 100 / max(len(weights), 1)
    return tuple(
        WeightBar(
            x=round(place * room, 3),
            width=round(room * 0.72, 3),
            height=bar(weights[index], tallest),
            mark=None,
            label=f"{clients.get(index, index)} {percent(weights[index], 2)}",
        )
        for place, index in enumerate(sorted(weights))
    )
