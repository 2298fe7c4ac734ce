"""From an address such as ``/compare?runs=a,b,trial-*`` to the context of the page that compares them."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from server.pages.charts import LineChart, line_chart
from server.pages.comparison import Gain, Series, differing, find_gain, make_series
from server.pages.contexts import ComparedLine, ComparedRow, ComparePage
from server.pages.metric_words import name_metric, write_metric
from server.pages.reader import Reader
from server.pages.words import ABSENT, number, percent
from server.web.numbers import parse_whole
from shared.metric_names import CONFUSION
from shared.problems import InvalidRequest, NotFound
from shared.schemas import ComparedRun
from shared.scores import find_direction, summarise
from shared.texts import format_count

__all__ = ["Asked", "compare_page"]

MOST_RUNS = 500
DRAWN = 6
"""Series with a curve and a column: more would not be told apart."""
MOST_PINNED = DRAWN - 1
"""Runs, so that all of them and the baseline have a curve."""
LARGEST_ROUND = 999_999_999
_STEP = 0.05


@dataclass(frozen=True)
class Asked:
    """What the address says, as text; empty: not said.

    ``runs`` may hold several names, separated by commas or spaces, and patterns with ``*``. ``target`` is in
    per cent for shares such as accuracy, ``apart`` "1" for a series a run. ``pin`` is written like ``runs``:
    these are compared too, come first and are always drawn.
    """

    runs: Sequence[str] = ()
    baseline: str = ""
    measure: str = ""
    target: str = ""
    round: str = ""
    apart: str = ""
    pin: Sequence[str] = ()


def compare_page(
    store: Reader, asked: Asked, now: dt.datetime, only: frozenset[str] | None = None
) -> ComparePage:
    """Raises NotFound for a run that is not there, InvalidRequest for what is no number or too much.

    ``only``: the runs that the visitor may read; None: all.
    """
    found = sorted(store.runs(), key=lambda run: (run.created_at, run.run))
    known = [run.run for run in found if only is None or run.run in only]
    words = _split(asked.runs)
    pins = _choose_pins(_split(asked.pin), known)
    names = _choose([*words, *pins], known)
    runs = store.compared(names)
    there = _find_measures(runs)
    measure = _measure(asked.measure, there, runs)
    grouped = not asked.apart
    series = make_series(runs, measure, grouped=grouped)
    baseline = _baseline(series, asked.baseline)
    series = _order(series, pins, baseline)
    target = _target(asked.target, series, measure)
    chosen = _round(asked.round)
    paths = differing(series, grouped=grouped)
    drawn = series[:DRAWN]
    return ComparePage(
        title="Compare",
        now=now,
        asked=" ".join(words),
        asked_baseline=asked.baseline,
        asked_measure=asked.measure,
        asked_target=asked.target,
        names=names,
        known=known,
        measure_words=_capitalise(name_metric(measure)),
        measures={name: _offer(name, runs) for name in dict.fromkeys((*there, measure))},
        is_share=_is_share(measure),
        direction=find_direction(measure),
        pins=pins,
        most_pinned=MOST_PINNED,
        target="" if target is None else f"{100 * target if _is_share(measure) else target:g}",
        round="" if chosen is None else str(chosen),
        grouped=grouped,
        differing=paths,
        lines=[
            _line(one, place, baseline, paths, target, chosen, measure, pins)
            for place, one in enumerate(series)
        ],
        chart=_chart(drawn, measure),
        columns=[one.name for one in drawn],
        categories=_categories(store, drawn),
        weights=_weights(store, drawn),
        undrawn=max(len(series) - DRAWN, 0),
    )


def _split(texts: Sequence[str]) -> list[str]:
    return [word for text in texts for word in text.replace(",", " ").split()]


def _choose(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """The runs that are meant, each once; a pattern takes what it fits, oldest first."""
    there, chosen = set(known), dict[str, None]()
    for word in words:
        found = [word] if word in there else [name for name in known if fnmatchcase(name, word)]
        if not found:
            raise NotFound(f"There is no run {word[:60]!r}.", hint="The list of runs has their names.")
        chosen |= dict.fromkeys(found)
    if len(chosen) > MOST_RUNS:
        raise InvalidRequest(
            f"{len(chosen)} runs are more than the {MOST_RUNS} that are compared at once.",
            hint="Name fewer, or a narrower pattern.",
        )
    return list(chosen)


def _choose_pins(words: Sequence[str], known: Sequence[str]) -> list[str]:
    pins = _choose(words, known)
    if len(pins) > MOST_PINNED:
        raise InvalidRequest(
            f"{len(pins)} pinned runs are more than the {MOST_PINNED} that are always drawn.",
            hint="Name fewer in pin.",
        )
    return pins


def _order(series: Sequence[Series], pins: Sequence[str], baseline: Series | None) -> list[Series]:
    """Pinned series first, as they were pinned; then the baseline if it would not be drawn; then the rest."""
    place = {name: at for at, name in enumerate(pins)}
    ordered = sorted(series, key=lambda one: min(place.get(run.run, len(pins)) for run in one.runs))
    if baseline in ordered[DRAWN:]:  # what all others are measured by is drawn, however many there are
        pinned = [one for one in ordered if any(run.run in place for run in one.runs)]
        rest = [one for one in ordered[len(pinned) :] if one is not baseline]
        return [*pinned, baseline, *rest]
    return ordered


def _find_measures(runs: Sequence[ComparedRun]) -> list[str]:
    """The scores that any of the runs has: accuracy and loss first, all others by their names."""
    scores = [score for run in runs for score in run.scores]
    found = ["accuracy"] if any(score.accuracy is not None for score in scores) else []
    found += ["loss"] if any(score.loss is not None for score in scores) else []
    return found + sorted({name for score in scores for name in score.extra} - {"accuracy", "loss"})


def _measure(asked: str, there: Sequence[str], runs: Sequence[ComparedRun]) -> str:
    """What was asked for; else the headline if all runs chose the same one; else accuracy, or loss."""
    headlines = {run.config.get("headline") for run in runs}
    if not asked:
        chosen = headlines.pop() if len(headlines) == 1 else None
        if chosen in there:
            return str(chosen)
        return "loss" if "loss" in there and "accuracy" not in there else "accuracy"
    promised = {name for run in runs for name in run.config.get("metrics", ()) if name != CONFUSION}
    if asked not in {"accuracy", "loss", *there, *promised, *headlines}:
        known = ", ".join(there or ("accuracy", "loss"))
        raise InvalidRequest(
            f"{asked[:40]!r} cannot be compared: none of these runs has it.", hint=f"Measures are {known}."
        )
    return asked


def _offer(measure: str, runs: Sequence[ComparedRun]) -> str:
    """In words, for the choice."""
    is_headline = any(run.config.get("headline") == measure for run in runs)
    return name_metric(measure) + (" (headline)" if is_headline else "")


def _is_share(measure: str) -> bool:
    """Whether it is written in per cent."""
    return write_metric(measure) is percent


def _capitalise(words: str) -> str:
    return words[:1].upper() + words[1:]


def _baseline(series: Sequence[Series], asked: str) -> Series | None:
    """The series of the run that was asked for, else the first."""
    if not asked:
        return series[0] if series else None
    for one in series:
        if asked in (run.run for run in one.runs):
            return one
    raise NotFound(f"The baseline {asked[:60]!r} is not among the compared runs.", hint="Add it to the runs.")


def _target(asked: str, series: Sequence[Series], measure: str) -> float | None:
    """What was asked for; else, of a share, the highest multiple of 5 % that every series reaches."""
    if asked:
        try:
            value = float(asked)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidRequest(f"The target {asked[:40]!r} is no number.", hint="Write 60 for 60 %.")
        return value / 100 if _is_share(measure) else value
    best = [one.best[1] for one in series if one.best is not None]
    if not _is_share(measure) or not best:
        return None
    return round(math.floor(min(best) / _STEP + 1e-9) * _STEP, 9)


def _round(asked: str) -> int | None:
    if not asked:
        return None
    found = parse_whole(asked, LARGEST_ROUND)
    if found is None:
        raise InvalidRequest(f"{asked[:40]!r} is not the number of a round.", hint="Rounds count from 1.")
    return found


def _write(value: float | None, measure: str, *, sign: bool = False) -> str:
    return percent(value, 2, sign=sign) if _is_share(measure) else number(value, sign=sign)


def _line(
    one: Series,
    place: int,
    baseline: Series | None,
    paths: Sequence[str],
    target: float | None,
    chosen: int | None,
    measure: str,
    pins: Sequence[str],
) -> ComparedLine:
    own = one is baseline
    gain = None if own or baseline is None else find_gain(one, baseline)
    reached = None if target is None else one.reaches(target)
    completed = sorted({run.completed_rounds for run in one.runs})
    others = [name for name in pins if name not in {run.run for run in one.runs}]
    is_pinned = len(others) < len(pins)
    return ComparedLine(
        name=one.name,
        runs=[run.run for run in one.runs],
        style=place if place < DRAWN else None,
        settings=[one.settings.get(path, ABSENT) for path in paths],
        rounds="–".join(map(str, dict.fromkeys((completed[0], completed[-1])))),
        last=_write(one.last[1] if one.last else None, measure),
        best=ABSENT if one.best is None else f"{_write(one.best[1], measure)} in round {one.best[0]}",
        chosen=_write(None if chosen is None else one.mean.get(chosen), measure),
        reaches=ABSENT if reached is None else str(reached),
        is_baseline=own,
        is_pinned=is_pinned,
        pin=",".join(others if is_pinned else [*pins, one.runs[0].run]),
        gain=_write(gain.value if gain else None, measure, sign=True),
        interval=_interval(gain, measure),
        basis=_basis(gain),
        verdict=gain.verdict(measure) if gain else "",
    )


def _interval(gain: Gain | None, measure: str) -> str:
    if gain is None or gain.interval is None:
        return ""
    low, high = gain.interval.low, gain.interval.high
    return f"{_write(low, measure, sign=True)} to {_write(high, measure, sign=True)}"


def _basis(gain: Gain | None) -> str:
    """What a gain rests on, in words."""
    if gain is None:
        return "no common round"
    rounds = format_count(gain.rounds, "round")
    if not gain.pairs:
        return f"other seeds, {rounds}"
    return f"{format_count(gain.pairs, 'seed')}, {rounds}"


def _chart(series: Sequence[Series], measure: str) -> LineChart | None:
    def tick(value: float) -> str:
        return f"{100 * value:g}\u202f%" if _is_share(measure) else f"{value:g}"

    return line_chart(
        "compared",
        f"{_capitalise(name_metric(measure))} by round",
        {one.name: sorted(one.mean.items()) for one in series},
        write=lambda value: _write(value, measure),
        tick=tick,
        bands={one.name: one.band for one in series},
    )


def _categories(store: Reader, series: Sequence[Series]) -> list[ComparedRow]:
    """Accuracy by category in the newest scored round: the mean over evaluators and runs."""
    newest = store.newest_categories([run.run for one in series for run in one.runs])
    columns: list[dict[str, list[float]]] = []
    for one in series:
        found: dict[str, list[float]] = {}
        for run in one.runs:
            for name, value in _summarise(run, newest.get(run.run, ())).items():
                found.setdefault(name, []).append(value)
        columns.append(found)
    return _rows([{name: statistics.fmean(values) for name, values in column.items()} for column in columns])


def _summarise(run: ComparedRun, evaluations: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Accuracy by category, the evaluators' as one by the run's rule."""
    found: dict[str, list[tuple[float, int]]] = {}
    for examples, by_category in evaluations:
        for name, value in by_category.items():
            found.setdefault(name, []).append((value, examples))
    rule = run.config.get("combine_scores", "median")
    return {name: summarise(scores, rule) for name, scores in found.items()}


def _weights(store: Reader, series: Sequence[Series]) -> list[ComparedRow]:
    """Each client's mean weight over the rounds that took its update, and over the runs of a series."""
    found = store.mean_weights([run.run for one in series for run in one.runs])
    columns = []
    for one in series:
        by_client: dict[str, list[float]] = {}
        for run in one.runs:
            for client, weight in found.get(run.run, {}).items():
                by_client.setdefault(client, []).append(weight)
        columns.append({client: math.fsum(values) / len(values) for client, values in by_client.items()})
    return _rows(columns)


def _rows(columns: Sequence[Mapping[str, float]]) -> list[ComparedRow]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [ComparedRow(name=name, values=[column.get(name) for column in columns]) for name in names]
