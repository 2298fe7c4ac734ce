"""A table as Markdown: ours beside what was published, and how much of it was run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

from experiments.evidence import Evidence, Gain, Verdict, measured
from experiments.mixture import Mixture, is_mixed, mixture
from experiments.plan import Cell
from experiments.records import Curve
from experiments.tables import BASE, Published, Table, load_table, methods, settings
from experiments.tuning import Choice, Tried, choose
from shared import statistics
from shared.statistics import Spread
from shared.texts import format_count

__all__ = [
    "GAIN_HEADER",
    "capitalise",
    "gain_numbers",
    "heading",
    "headline_rows",
    "progress",
    "table_page",
    "table_rows",
]

WORDS = {"last_ten": "mean of the last ten rounds, %", "best": "best round, %", "last": "last round, %"}
WORDS |= {
    "loss": "test loss, mean of the last ten rounds",
    "client_variance": "variance of the clients' accuracies, last round",
    "tail": "accuracy of the three rarest classes, mean of the last ten rounds, %",
}

SAME_BY_RULE = "equal sizes and steps: what their runs differ by is what rounding does to a seed"


def table_page(evidence: Evidence, pictures: Sequence[str]) -> str:
    """The whole page of a table; ``pictures`` are the names of its SVG files."""
    table = evidence.table
    parts = [*heading(table), f"{capitalise(evidence.state())}: {progress(evidence)}", "", *_added(evidence)]
    parts += [f"Measured: {WORDS[table.measure]}. {_spread_words(table)}{_target_words(table)}", ""]
    for setting in table.settings:
        parts += [f"## {settings()[setting].title}", "", *_setting(evidence, setting), ""]
    parts += [f"![{name}]({name})\n" for name in pictures]
    parts += _made_with(evidence)
    return "\n".join(parts).rstrip() + "\n"


def heading(table: Table) -> list[str]:
    """Title, where it is in the paper, the paper's claim and what differs here."""
    where = f"In the paper: {table.source}." if table.source else "Not in the paper."
    lines = [f"# {table.title}", "", where]
    if table.claim:
        lines += ["", f"The paper: {table.claim}"]
    if table.note:
        lines += ["", table.note.strip()]
    return [*lines, ""]


def progress(evidence: Evidence) -> str:
    """How much was run, and in how many comparisons Disco, or what there is, is ahead, in a few sentences."""
    there, asked = evidence.rounds()
    if not there:
        reasons = dict.fromkeys(settings()[setting].unrun for setting in evidence.table.settings)
        return f"no round of it, {', '.join(reasons)}."
    ran = f"{there} of {asked} rounds were run"
    if evidence.only_borrowed:
        lender = load_table(evidence.table.borrows or "").title
        return f"no run of its own, for want of time; {ran}, all of them for *{lender}*."
    verdicts = evidence.verdicts()
    said = f"{ran}; {_counted(verdicts, evidence.table.compared)}." if verdicts else f"{ran}."
    return " ".join([said, *_twins(evidence)])


def _counted(verdicts: Sequence[Verdict], compared: str) -> str:
    """In how many comparisons ``compared`` is ahead, level and behind.

    >>> _counted(["ahead", "level", "ahead"], "Disco")
    'of 3 comparisons Disco is ahead in 2, level in 1'
    """
    counts = [(word, verdicts.count(word)) for word in get_args(Verdict)]
    parts = [f"{word} in {count}" for word, count in counts if count or word == "ahead"]
    return f"of {format_count(len(verdicts), 'comparison')} {compared} is {', '.join(parts)}"


def _added(evidence: Evidence) -> list[str]:
    """What came of weightings that a caller added: of them the table's state knows nothing."""
    verdicts: dict[str, list[Verdict]] = {}
    for gain in evidence.of_added():
        if gain.same_as is None:
            verdicts.setdefault(gain.cell.label, []).append(gain.verdict)
    said = [_counted(found, label) for label, found in verdicts.items()]
    return [f"Added, and no part of the table: {'; '.join(said)}.", ""] if said else []


def _twins(evidence: Evidence) -> list[str]:
    """Which methods are others, in which settings, and were not counted again."""
    twins: dict[tuple[str, str, bool], list[str]] = {}
    for gain in evidence.with_disco():
        if gain.same_as:
            place = gain.cell.method, gain.same_as, gain.rounding
            twins.setdefault(place, []).append(settings()[gain.cell.setting].title)
    one = len(evidence.table.settings) == 1
    return [
        f"{methods()[name].title} is {methods()[other].title} {'here' if one else 'in ' + '; '.join(where)} "
        f"({SAME_BY_RULE if rounding else 'all rounds are the same'}) and not counted."
        for (name, other, rounding), where in twins.items()
    ]


def table_rows(header: Sequence[str], rows: Iterable[Sequence[str]], words: int = 2) -> list[str]:
    """Markdown lines of a table; all columns but the first ``words`` are numbers.

    >>> table_rows(["a", "b", "c"], [["x", "y", "1"]])
    ['| a | b | c |', '| --- | --- | ---: |', '| x | y | 1 |']
    """
    rule = ["---" if at < words else "---:" for at in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


# ---------------------------------------------------------------- one setting


def _setting(evidence: Evidence, setting: str) -> list[str]:
    grid = evidence.table.grid
    rows = [cell for cell in evidence.curves if cell.setting == setting]
    if grid is None:
        ran = [cell for cell in rows if evidence.curves[cell]]
        lines = [_row(evidence, cell) for cell in ran]
        shown = [*table_rows(_header(evidence.table), lines), ""] if ran else []
        missing = [cell for cell in rows if cell not in ran]
        after = [*_gains(evidence, setting), *_mixtures(evidence, ran)]
        return [*shown, *_choice(evidence), *after, *_not_run(evidence.table, setting, missing)]
    parts: list[str] = []
    for method in evidence.table.methods:
        parts += [
            f"{methods()[method].title}: gain in points over no Disco.",
            "",
            *_grid(evidence, setting, method),
            "",
        ]
    return parts


def headline_rows(evidence: Evidence) -> list[str]:
    """What was run of the table's first setting and method: scores, the choice of a and b, gains."""
    table = evidence.table
    setting, method = table.settings[0], table.methods[0]
    ran = [
        cell
        for cell, curves in evidence.curves.items()
        if (cell.setting, cell.method) == (setting, method) and curves
    ]
    lines = table_rows(_header(table), [_row(evidence, cell) for cell in ran])
    return [*lines, "", *_choice(evidence), *_gains(evidence, setting, method, page="#")]


def _header(table: Table) -> list[str]:
    header = ["method", "weighting", "published", "ours", "difference"]
    if table.higher_is_better:
        header += ["last", "best", "last ten: deviation"]
    if table.target_accuracy:
        header += [f"rounds to {100 * table.target_accuracy:g} % (published)"]
    return [*header, "seeds", "rounds"]


def _not_run(table: Table, setting: str, missing: Sequence[Cell]) -> list[str]:
    """What is still to be run, folded: long tables are read for what there is."""
    if not missing:
        return []
    lines = [
        [methods()[cell.method].title, _weighting(cell, table), _published(_published_figure(table, cell))]
        for cell in missing
    ]
    reason = settings()[setting].unrun
    title = f"Not yet run, {reason}: {len(missing)} of them, with the published figures"
    rows = table_rows(["method", "weighting", "published"], lines)
    return ["<details>", f"<summary>{title}</summary>", "", *rows, "", "</details>"]


def _row(evidence: Evidence, cell: Cell) -> list[str]:
    table = evidence.table
    curves, values = evidence.curves[cell], list(evidence.values(cell).values())
    published = _published_figure(table, cell)
    row = [methods()[cell.method].title, _weighting(cell, table), _published(published)]
    asked = table.rounds or next(iter(curves.values())).config.rounds
    ours = statistics.mean_and_deviation(values)
    row += [_spread(ours, _deviation(table, ours, curves.values()))]
    lengths = [len(curve.rounds) for curve in curves.values()]
    # a few rounds say nothing about a hundred, nor does another setting or scale
    alike = not (table.published_of or table.sign_only)
    compares = published is not None and min(lengths) >= asked and alike
    row += [f"{ours.mean - published.value:+.2f}" if published and compares else ""]
    if table.higher_is_better:
        row += [_mean(measured("last", curve) for curve in curves.values())]
        row += [_mean(measured("best", curve) for curve in curves.values())]
        row += [_mean(_within(curve) for curve in curves.values())]
    if table.target_accuracy:
        row += [_rounds_to(table.target_accuracy, list(curves.values()), published)]
    return [*row, f"{len(curves)} of {table.seeds}", _rounds(lengths, asked)]


def _deviation(table: Table, ours: Spread, curves: Iterable[Curve]) -> float | None:
    if table.spread == "seeds":
        return ours.deviation
    return statistics.mean_and_deviation([_within(curve) for curve in curves]).mean


def _within(curve: Curve) -> float:
    """Deviation over the last ten rounds in points; 0 for a single round."""
    accuracies = [100 * line.accuracy for line in curve.rounds if line.accuracy is not None]
    return (statistics.last_ten(accuracies).deviation or 0.0) if accuracies else math.nan


def _rounds_to(target: float, curves: Sequence[Curve], published: Published | None) -> str:
    reached = [
        statistics.rounds_to([line.accuracy or 0 for line in curve.rounds], target) for curve in curves
    ]
    numbers = sorted(number for number in reached if number is not None)
    ours = ", ".join(map(str, numbers)) if numbers else "not reached"
    if numbers and len(numbers) < len(reached):
        ours += f", not reached {len(reached) - len(numbers)} x"
    return f"{ours} ({published.rounds})" if published and published.rounds else ours


# ---------------------------------------------------------------- a and b, chosen


def _choice(evidence: Evidence) -> list[str]:
    """How a and b came out that are tuned, and what each way to choose takes."""
    tune = evidence.table.tune
    if tune is None:
        return []
    choice = choose(evidence)
    if choice is None:
        return ["a and b are not chosen yet: no pair was run to the end.", ""]
    rows = [
        [each.weighting, _percent(each.validation), _percent(each.test), ", ".join(_chosen_by(choice, each))]
        for each in choice.tried
    ]
    seeds = ", ".join(map(str, choice.seeds))
    return [
        f"a and b, mean of the last ten rounds in % with {methods()[tune.method].title}, "
        f"{len(choice.tried)} of {choice.of} pairs, seeds {seeds}. "
        f"*Tuned* is the choice on {'validation' if tune.on == 'validation' else 'the test set'}:",
        "",
        *table_rows(["pair", "validation", "test", "chosen on"], rows, words=1),
        "",
    ]


def _chosen_by(choice: Choice, tried: Tried) -> list[str]:
    by = {"validation": choice.on_validation, "test, as in the paper": choice.on_test}
    return [name for name, pair in by.items() if pair == tried.weighting]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# ---------------------------------------------------------------- gains


def _gains(
    evidence: Evidence, setting: str, method: str | None = None, page: str = "../results.md#"
) -> list[str]:
    """Of a setting (and a method); ``page`` is where the columns are explained."""
    found = [
        gain for gain in evidence.gains if gain.cell.setting == setting and method in (None, gain.cell.method)
    ]
    if not found:
        return []
    added = {gain.cell for gain in evidence.of_added()}
    compared = "the other weighting" if any(gain.cell in added for gain in found) else evidence.table.compared
    header = ["method", "weighting", *GAIN_HEADER, f"{capitalise(compared)} is"]
    rows = [
        [
            methods()[gain.cell.method].title,
            _weighting(gain.cell, evidence.table),
            *gain_numbers(evidence.table, gain),
        ]
        for gain in found
    ]
    return [
        "Gain over the first weighting, pairs of the same seed over the rounds that both have "
        f"([what the columns mean]({page}how-gains-are-compared)):",
        "",
        *table_rows(header, rows),
        "",
    ]


GAIN_HEADER = (
    "rounds", "seeds", "published gain", "gain", "by seed", "over the run", "95 %",
)  # fmt: skip


def gain_numbers(table: Table, gain: Gain) -> list[str]:
    """The cells under ``GAIN_HEADER``, and the verdict."""
    low, high = gain.rounds
    return [
        str(low) if low == high else f"{low} to {high}",
        str(gain.spread.count),
        published_gain(table, gain),
        f"{gain.spread.mean:+.2f}",
        ", ".join(f"{value:+.2f}" for value in gain.by_seed) if len(gain.by_seed) > 1 else "",
        f"{gain.over.mean:+.2f}",
        f"{gain.interval.low:+.2f} to {gain.interval.high:+.2f}",
        _verdict(gain),
    ]


def published_gain(table: Table, gain: Gain) -> str:
    """In brackets unless ours is of its setting, rounds and scale: nobody is to take them for comparable."""
    if gain.published is None:
        return ""
    asked = table.rounds or int(settings()[gain.cell.setting].config["rounds"])
    number = f"{gain.published:+.2f}"
    unlike = [f"after {asked}"] if gain.rounds[0] < asked else []
    unlike += [f"of {table.published_of}"] if table.published_of else []
    unlike += ["in sign only"] if table.sign_only else []
    return f"({number} {', '.join(unlike)})" if unlike else number


def _verdict(gain: Gain) -> str:
    if gain.same_as is None:
        return gain.verdict
    return f"as {methods()[gain.same_as].title}, {'but for rounding' if gain.rounding else 'the same run'}"


def _mixtures(evidence: Evidence, ran: Sequence[Cell]) -> list[str]:
    """With partial participation: what a round's accuracy goes with."""
    rows = []
    for cell in ran:
        found = [mixture(curve) for curve in evidence.curves[cell].values() if is_mixed(curve)]
        if found:
            names = [methods()[cell.method].title, _weighting(cell, evidence.table)]
            rows.append([*names, *_mixture_numbers(found), str(len(found))])
    if not rows:
        return []
    header = ["method", "weighting", "KL", "points per nat", "r with KL", "r with unbiased clients", "seeds"]
    return [
        "What a round's accuracy goes with, rounds from 21 on, means over seeds: KL is the divergence of the "
        "round's mix of classes, sum of p_k D_k, from uniform; r are correlations over rounds:",
        "",
        *table_rows(header, rows),
        "",
    ]


def _mixture_numbers(found: Sequence[Mixture]) -> list[str]:
    """Means over seeds."""
    pairs = [(m.divergence, m.slope, m.with_divergence, m.with_unbiased) for m in found]
    kl, slope, r, unbiased = (
        statistics.mean_and_deviation(values).mean for values in zip(*pairs, strict=True)
    )
    return [f"{kl:.3f}", f"{slope:.0f}", f"{r:+.2f}", f"{unbiased:+.2f}"]


def _grid(evidence: Evidence, setting: str, method: str) -> list[str]:
    grid = evidence.table.grid
    assert grid is not None
    rows = []
    for a in grid.a:
        gains = [evidence.gain(Cell(setting, method, f"a{a:g}-b{b:g}")) for b in grid.b]
        rows.append([f"a = {a:g}", *(_grid_words(gain) for gain in gains)])
    return table_rows(["", *(f"b = {b:g}" for b in grid.b)], rows)


def _grid_words(gain: Gain | None) -> str:
    if gain is None:
        return "not yet run"
    low, high = gain.rounds
    rounds = f"{low}" if low == high else f"{low} to {high}"
    return f"{gain.spread.mean:+.2f} ({rounds} rounds, seeds: {gain.spread.count})"


# ---------------------------------------------------------------- words and numbers


def _weighting(cell: Cell, table: Table) -> str:
    if cell.weighting == BASE:
        return f"{cell.resolved} (base)"
    if table.tune is None or cell.weighting != table.tuned:
        return cell.label
    return f"{cell.weighting} (tuned)" if table.chosen else "tuned, not chosen yet"


def _published_figure(table: Table, cell: Cell) -> Published | None:
    return table.published_figure(cell.setting, cell.method, cell.weighting)


def _published(figure: Published | None) -> str:
    if figure is None:
        return ""
    return f"{figure.value:.2f}" + (f" ± {figure.std:.2f}" if figure.std is not None else "")


def _spread(spread: Spread, deviation: float | None) -> str:
    return f"{spread.mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def _mean(values: Iterable[float]) -> str:
    return f"{statistics.mean_and_deviation(list(values)).mean:.2f}"


def _rounds(there: Sequence[int], asked: int) -> str:
    low, high = min(there), max(there)
    if low >= asked:
        return str(asked)
    return f"{low} of {asked}" if low == high else f"{low} to {high} of {asked}"


def _spread_words(table: Table) -> str:
    over = "the last ten rounds (mean over seeds)" if table.spread == "rounds" else "seeds"
    return f"After ± stands the standard deviation over {over}."


def _target_words(table: Table) -> str:
    if table.target_accuracy is None:
        return ""
    target = f"{100 * table.target_accuracy:g} %"
    return f" Rounds to {target} are counted from 0 as in the paper: the first round trained is round 0."


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _made_with(evidence: Evidence) -> list[str]:
    curves = [curve for found in evidence.curves.values() for curve in found.values()]
    versions = sorted({f"PyTorch {curve.versions['torch']} ({curve.made_with})" for curve in curves})
    return [f"Made with {', '.join(versions)}."] if versions else []
