"""From a run's rows to the context of its page."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from server.pages.assistance import assistance_sentence, assistant_notice
from server.pages.charts import LineChart, bar, line_chart
from server.pages.contexts import (
    CategoryRow,
    CategoryTable,
    ClientRow,
    Headline,
    ParticipantLine,
    RoundLine,
    RunPage,
    Score,
    ScoreLine,
    WeightBar,
)
from server.pages.explain import admission, weighting_name
from server.pages.losses import TrainingLosses
from server.pages.metric_words import confusion_tables, metric_charts, name_metric, write_metric
from server.pages.offers import list_next_steps, list_offers
from server.pages.reader import Reader, newest_events, stream_of
from server.pages.shadows import cost_of_shadows, curves_of_shadows
from server.pages.weight_map import map_weights
from server.pages.words import number, percent
from shared.outliers import find_outliers
from shared.schemas import (
    EnrolmentStatus,
    EnrolmentView,
    EvaluationView,
    LedgerRow,
    Role,
    RoundStatus,
    RoundView,
    RunView,
    TensorKind,
)
from shared.scores import find_score, summarise
from shared.texts import format_count

__all__ = ["charts_of", "run_page"]

SHOWN_ROUNDS = 20
SHOWN_EVENTS = 25
OLDER_ROUNDS = 100
OLDER_EVENTS = 500
"""On a page of the past."""
TRAINING = "training, weighted by pₖ"


def run_page(
    store: Reader,
    losses: TrainingLosses,
    name: str,
    now: dt.datetime,
    *,
    address: str,
    rounds_before: int | None = None,
    events_before: int | None = None,
    from_zero: bool = False,
) -> RunPage:
    """The page of one run, with its newest rounds and events, or those before a round or an event.

    ``address``: how sites reach the coordinator.
    """
    # The newest id is read before the rest: what happens in between is then announced, not missed.
    latest = store.latest_event_id(name)
    run = store.run_view(name, now)
    lowest = 1 if run.config.secure is None else 0  # a secure run begins with a sum over all trainers
    last = None if rounds_before is None else rounds_before - 1  # None: also rounds from before it went back
    first = _newest_round(run) - SHOWN_ROUNDS + 1 if last is None else last - OLDER_ROUNDS + 1
    training = _find_losses(store, losses, name)
    rounds = sorted(
        store.rounds(name, max(first, lowest), last), key=lambda round: (-round.round, -round.attempt)
    )
    evaluations = sorted(store.evaluations(name), key=lambda found: (found.round, found.client))
    most_events = SHOWN_EVENTS if events_before is None else OLDER_EVENTS
    events = newest_events(store, name, most_events + 1, events_before)
    log = events[:most_events]
    open_round = run.current_round if run.current_round and run.current_round.status.is_open else None
    return RunPage(
        title=_title(run),
        now=now,
        events=stream_of(run, latest),
        run=run,
        summary=_summary(run),
        weighting=weighting_name(run.config.weighting),
        twin=_find_twin(store, run),
        assistant=assistant_notice(run.config),
        assistance=assistance_sentence(run.config, open_round) if open_round else None,
        trainers=len(_trainers(run)),
        examples=_count_examples(run),
        accuracy=score(run, evaluations, lambda found: found.accuracy),
        loss=score(run, evaluations, lambda found: found.loss),
        open_round=open_round,
        participants=tuple(map(_participant, open_round.ledger)) if open_round else (),
        headline=_headline(run, evaluations),
        charts=_all_charts(run, evaluations, training, from_zero=from_zero),
        weight_map=map_weights(rounds),
        confusions=confusion_tables(evaluations, run.classes, run.config.metrics),
        shadow_cost=cost_of_shadows(rounds),
        scores=scores(evaluations, training),
        categories=categories(evaluations, run.classes),
        admission=admission(run.config),
        unapproved=tuple(
            found.client for found in run.enrolments if found.status is EnrolmentStatus.AWAITING_APPROVAL
        ),
        clients=_clients(run),
        rounds=tuple(_line(run, round, evaluations) for round in rounds),
        older_rounds=first if first > lowest else None,
        newer_rounds=rounds_before is not None,
        log=log,
        older_events=log[-1].id if len(events) > len(log) else None,
        newer_events=events_before is not None,
        configuration=json.dumps(run.config.model_dump(mode="json"), indent=2, ensure_ascii=False),
        next_steps=list_next_steps(run, address),
        offers=list_offers(run),
        parameters=sum(math.prod(t.shape) for t in run.manifest if t.kind is TensorKind.PARAMETER),
    )


def charts_of(
    store: Reader, losses: TrainingLosses, name: str, now: dt.datetime, *, from_zero: bool
) -> tuple[LineChart, ...]:
    """All charts of the run's page."""
    run = store.run_view(name, now)
    evaluations = sorted(store.evaluations(name), key=lambda found: (found.round, found.client))
    return _all_charts(run, evaluations, _find_losses(store, losses, name), from_zero=from_zero)


def _find_losses(store: Reader, losses: TrainingLosses, run: str) -> Mapping[int, float]:
    return losses.find(run, store.completed_attempts(run), partial(store.rounds, run))


def _all_charts(
    run: RunView, evaluations: Sequence[EvaluationView], training: Mapping[int, float], *, from_zero: bool
) -> tuple[LineChart, ...]:
    further = metric_charts(evaluations, run.config.metrics, run.rounds, from_zero=from_zero)
    return charts(evaluations, training, run.rounds, from_zero=from_zero) + further


def _headline(run: RunView, evaluations: Sequence[EvaluationView]) -> Headline | None:
    """The score that the run chose to be shown first, if it is another than accuracy and loss."""
    name = run.config.headline
    if name is None or name in ("accuracy", "loss"):
        return None
    found = score(run, evaluations, lambda evaluation: find_score(evaluation, name))
    if found is None:
        return None
    words = name_metric(name)
    return Headline(
        name=words[:1].upper() + words[1:], value=write_metric(name)(found.value), round=found.round
    )


def _find_twin(store: Reader, run: RunView) -> str | None:
    """The run that was created beside this one, if it is still there."""
    twin, before = run.config.make_twin(), run.run.removesuffix("-fedavg")
    if twin is None and before == run.run:
        return None
    known = {other.config["name"]: other.config for other in store.compared([twin.name if twin else before])}
    if twin is not None:
        return twin.name if twin.name in known else None
    return before if known.get(before, {}).get("also") else None


def _count_examples(run: RunView) -> int | None:
    """Of all trainers; of a secure run what their sum has told, None until then."""
    if run.config.secure is not None:
        return None if run.totals is None else run.totals.examples
    return sum(found.examples for found in _trainers(run))


def _trainers(run: RunView) -> list[EnrolmentView]:
    """Who trains, or did so to the end; without those who left, declined or were kept out."""
    return [found for found in run.enrolments if found.role is Role.TRAINER and not found.status.is_gone]


def _newest_round(run: RunView) -> int:
    return run.current_round.round if run.current_round else run.completed_rounds


def charts(
    evaluations: Sequence[EvaluationView],
    training: Mapping[int, float],
    rounds: int,
    *,
    from_zero: bool = False,
) -> tuple[LineChart, ...]:
    """Accuracy and loss by round: a curve an evaluator, thin ones of shadows; none without data."""
    accuracy: dict[str, list[tuple[int, float]]] = {}
    loss: dict[str, list[tuple[int, float]]] = {}
    for found in evaluations:
        if found.loss is not None:
            loss.setdefault(found.client, []).append((found.round, found.loss))
        if found.accuracy is not None:
            accuracy.setdefault(found.client, []).append((found.round, found.accuracy))
    loss[TRAINING] = list(training.items())
    shadows = curves_of_shadows(evaluations)
    thin = tuple(shadows)
    for name, curve in shadows.items():
        accuracy[name] = [(at, score.accuracy) for at, score in curve if score.accuracy is not None]
        loss[name] = [(at, score.loss) for at, score in curve if score.loss is not None]
    drawn = (
        line_chart(
            "accuracy",
            "Accuracy by round",
            accuracy,
            write=percent,
            tick=_percent_tick,
            last_round=rounds,
            thin=thin,
            best="highest",
            from_zero=from_zero,
        ),
        line_chart(
            "loss",
            "Loss by round",
            loss,
            write=number,
            tick=_plain_tick,
            last_round=rounds,
            thin=thin,
            best="lowest",
            from_zero=from_zero,
        ),
    )
    return tuple(chart for chart in drawn if chart is not None)


def _percent_tick(value: float) -> str:
    return f"{100 * value:g}\u202f%"


def _plain_tick(value: float) -> str:
    return f"{value:g}"


def scores(evaluations: Sequence[EvaluationView], training: Mapping[int, float]) -> tuple[ScoreLine, ...]:
    """The same numbers as :func:`charts`, newest first. A round nobody scored has its training loss alone."""
    lines = [
        ScoreLine(
            round=found.round,
            evaluator=found.client,
            accuracy=found.accuracy,
            loss=found.loss,
            training_loss=training.get(found.round),
        )
        for found in evaluations
    ]
    scored = {found.round for found in evaluations}
    lines += [
        ScoreLine(round=round, evaluator=None, accuracy=None, loss=None, training_loss=loss)
        for round, loss in training.items()
        if round not in scored
    ]
    return tuple(sorted(lines, key=lambda line: (-line.round, line.evaluator or "")))


def categories(evaluations: Sequence[EvaluationView], classes: Sequence[str]) -> tuple[CategoryTable, ...]:
    """Accuracy by category, one table an evaluator: its first and its newest scored round, in class order."""
    order = {name: place for place, name in enumerate(classes)}
    by_client: dict[str, list[EvaluationView]] = {}
    for found in evaluations:
        if found.per_category:
            by_client.setdefault(found.client, []).append(found)
    tables = []
    for client, history in sorted(by_client.items()):
        first, newest = history[0], history[-1]
        names = sorted(newest.per_category, key=lambda name: (order.get(name, len(order)), name))
        tables.append(
            CategoryTable(
                evaluator=client,
                first_round=first.round,
                newest_round=newest.round,
                rows=tuple(_category(name, first, newest) for name in names),
            )
        )
    return tuple(tables)


def _category(name: str, first: EvaluationView, newest: EvaluationView) -> CategoryRow:
    before, after = first.per_category.get(name), newest.per_category[name]
    if first.round == newest.round:
        before = None
    return CategoryRow(
        name=name, first=before, newest=after, change=None if before is None else after - before
    )


def score(
    run: RunView, evaluations: Iterable[EvaluationView], of: Callable[[EvaluationView], float | None]
) -> Score | None:
    """The newest round that half of the evaluators have given the number, as one by the run's rule."""
    counted = {
        found.client
        for found in run.enrolments
        if found.role is Role.EVALUATOR and found.status is not EnrolmentStatus.REFUSED
    }
    by_round: dict[int, list[tuple[float, int]]] = {}
    judges: set[str] = set()
    for found in evaluations:
        if found.client in counted and (value := of(found)) is not None:
            by_round.setdefault(found.round, []).append((value, found.examples))
            judges.add(found.client)
    enough = [number for number, scores in by_round.items() if 2 * len(scores) >= len(judges)]
    if not enough:
        return None
    newest = max(enough)
    scores = by_round[newest]
    return Score(
        round=newest,
        value=summarise(scores, run.config.combine_scores),
        examples=sum(examples for _, examples in scores),
        evaluators=len(scores),
        of=len(judges),
    )


def _title(run: RunView) -> str:
    score = "" if run.accuracy is None else f" · {percent(run.accuracy)}"
    return f"{run.completed_rounds}/{run.rounds}{score} · {run.run}"


def _summary(run: RunView) -> str:
    """What the run waits for; of one that has ended, how."""
    if not run.status.is_terminal:
        return run.waiting_for
    if run.reason:
        return run.reason
    return f"{run.status.value} after {run.completed_rounds} of {format_count(run.rounds, 'round')}"


def _participant(row: LedgerRow) -> ParticipantLine:
    """How far a client is: 100 per cent once its update is here."""
    if row.status.has_uploaded:
        return ParticipantLine(row=row, done=100.0, step="")
    if row.progress is None:
        return ParticipantLine(row=row, done=0.0, step="")
    at = row.progress
    parts = [f"epoch {at.epoch} of {at.epochs}"] if at.epochs else []
    parts += [f"step {at.step} of {at.steps}"] if at.steps else []
    done = bar(at.step, at.steps) if at.steps else bar(at.epoch, at.epochs)
    return ParticipantLine(row=row, done=done, step=", ".join(parts))


def _clients(run: RunView) -> tuple[ClientRow, ...]:
    """Trainers in index order, then evaluators; the bar compares raw discrepancies."""
    finite = [
        e.discrepancy for e in run.enrolments if e.discrepancy is not None and math.isfinite(e.discrepancy)
    ]
    longest = max(finite, default=0.0)
    ordered = sorted(
        run.enrolments,
        key=lambda e: (e.role is not Role.TRAINER, e.index is None, e.index or 0, e.client),
    )
    return tuple(ClientRow(enrolment=found, bar=bar(found.discrepancy, longest)) for found in ordered)


def _line(run: RunView, round: RoundView, evaluations: Sequence[EvaluationView]) -> RoundLine:
    completed = round.status is RoundStatus.COMPLETED
    scored = score(run, (e for e in evaluations if e.round == round.round), lambda found: found.accuracy)
    return RoundLine(
        round=round,
        seconds=(round.completed_at - round.opened_at).total_seconds() if round.completed_at else None,
        arrived=sum(row.status.has_uploaded for row in round.ledger),
        invited=len(round.ledger),
        accuracy=scored.value if completed and scored else None,
        bars=weight_bars(round.ledger),
        outliers=len(find_outliers(round.ledger)),
    )


def weight_bars(ledger: Sequence[LedgerRow]) -> tuple[WeightBar, ...]:
    """A bar a client in index order, as high as its weight against the round's largest weight."""
    known = [row for row in ledger if row.weight is not None]
    tallest = max((max(row.weight or 0, row.size_weight or 0) for row in known), default=0.0)
    room = 100 / max(len(known), 1)
    return tuple(
        WeightBar(
            x=round(place * room, 3),
            width=round(room * 0.72, 3),
            height=bar(row.weight, tallest),
            mark=None if row.size_weight is None else 100 - bar(row.size_weight, tallest),
            label=f"{row.client} {percent(row.weight, 2)}, by size {percent(row.size_weight, 2)}",
        )
        for place, row in enumerate(known)
    )
