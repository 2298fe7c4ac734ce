"""What a site answers about its labels, and what an attacker makes of the answers."""

from __future__ import annotations

import json
import math
import stat
import sys
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.config import AnyMetric, Metric
from shared.discrepancy import Target, discrepancy
from shared.faults import FaultCode
from shared.problems import InvalidConfiguration
from worker.candidates import _Moved, count_fits, partitions
from worker.disclosure import (
    Disclosures,
    NotDisclosed,
    Question,
    Rule,
    describe_answer,
    told_size,
)
from worker.noise import make_noise, sensitivity

COUNTS = (40, 100, 20, 100)
NOISED, EXACT, NONE = Rule("noised"), Rule("exact"), Rule("none")
EVERY: tuple[Metric, ...] = ("kl", "l1", "l2", "cosine")


def _ask(
    counts: Iterable[int] = COUNTS,
    *,
    data: str = "scans",
    reading: str = "as they are",
    classes: str = "abcdefghij",
    metric: AnyMetric = "kl",
    target: Target = "uniform",
    contents: tuple[str, ...] = (),
) -> Question:
    held = tuple(counts)
    named = tuple(classes[: len(held)])
    return Question(
        data=data,
        reading=reading,
        classes=named,
        counts=held,
        metric=metric,
        target=target,
        contents=contents,
    )


def _refusal(book: Disclosures, question: Question, rule: Rule = NOISED) -> FaultCode | None:
    try:
        book.answer(question, rule)
    except NotDisclosed as refused:
        return refused.code
    return None


@pytest.fixture
def book(tmp_path: Path) -> Disclosures:
    return Disclosures(tmp_path)


# ---------------------------------------------------------------- one answer for ever


def test_many_runs_get_one_answer(tmp_path: Path) -> None:
    """Each as after a restart: what was drawn once is on the disk."""
    answers = {Disclosures(tmp_path).answer(_ask(), NOISED).value for _ in range(10)}
    assert len(answers) == 1


def test_sites_draw_noise_of_their_own(tmp_path: Path) -> None:
    answers = set()
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        answers.add(Disclosures(tmp_path / str(number)).answer(_ask(), NOISED).value)
    assert len(answers) > 1


def test_the_answer_is_on_the_disk_and_private_before_it_is_given(tmp_path: Path) -> None:
    answer = Disclosures(tmp_path).answer(_ask(), NOISED)
    path = tmp_path / "disclosures.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert repr(answer.value) in path.read_text()


def test_touched_files_are_the_same_data(book: Disclosures) -> None:
    answer = book.answer(_ask(data="scans"), NOISED)
    assert book.answer(_ask(data="scans, touched"), NOISED).value == answer.value


def test_another_order_of_the_classes_is_the_same_question(book: Disclosures) -> None:
    answer = book.answer(_ask(), NOISED)
    assert book.answer(_ask(sorted(COUNTS), reading="reversed"), NOISED).value == answer.value


def test_classes_that_nobody_has_bring_no_second_draw(book: Disclosures) -> None:
    """d = ln C - H: the same entropy, told for five classes as for four."""
    four = book.answer(_ask(), NOISED).value
    five = book.answer(_ask((*COUNTS, 0), reading="five"), NOISED).value
    assert math.log(5) - five == pytest.approx(math.log(4) - four)


def test_thresholds_that_runs_choose_do_not_read_the_histogram_off(book: Disclosures) -> None:
    """A task of bins: each run asks for another edge, on the same files."""
    assert _refusal(book, _ask((200, 60), reading="edge 1")) is None
    assert _refusal(book, _ask((150, 110), reading="edge 2")) is FaultCode.OTHER_CLASSES
    assert _refusal(book, _ask((150, 110), reading="edge 2"), EXACT) is FaultCode.OTHER_CLASSES


def test_a_seed_that_draws_what_is_held_out_brings_no_second_draw(book: Disclosures) -> None:
    answer = book.answer(_ask((40, 100, 20, 100)), NOISED)
    assert book.answer(_ask((41, 99, 21, 99)), NOISED).value == answer.value


def test_changed_data_are_answered_anew(book: Disclosures) -> None:
    book.answer(_ask(), EXACT)
    assert book.answer(_ask((50, 50), data="more scans"), EXACT).value == 0.0


def test_a_record_that_cannot_be_read_is_no_reason_to_answer_again(tmp_path: Path) -> None:
    (tmp_path / "disclosures.json").write_text("{")
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        Disclosures(tmp_path).answer(_ask(), NOISED)
    assert (tmp_path / "disclosures.json").read_text() == "{"


# ---------------------------------------------------------------- what is refused


def test_nothing_is_told_at_the_grade_none(book: Disclosures) -> None:
    assert _refusal(book, _ask(), NONE) is FaultCode.NOTHING_TOLD


def test_metrics_that_the_site_does_not_name_are_refused(book: Disclosures) -> None:
    assert _refusal(book, _ask(metric="l1")) is FaultCode.OTHER_METRIC
    assert _refusal(book, _ask(metric="l1"), replace(NOISED, metrics=EVERY)) is None


def test_a_metric_of_ones_own_is_answered_exactly_or_not_at_all(
    book: Disclosures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may go by the order of the classes, so another order is another question: of these data, refused."""
    module = ModuleType("own_metric")
    module.first = lambda shares, target: shares[0]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_metric", module)
    own = "own_metric:first"
    question = _ask(metric=own)
    assert _refusal(book, question, Rule("exact")) is FaultCode.OTHER_METRIC
    assert _refusal(book, question, Rule("noised", metrics=(own,))) is FaultCode.OTHER_METRIC
    allowed = Rule("exact", metrics=("kl", own))
    answer = book.answer(question, allowed)
    assert answer.value == COUNTS[0] / sum(COUNTS)
    assert describe_answer(answer, question) == f"told d = {answer.value:.4g} by {own}, exact"
    assert book.answer(question, allowed) == answer
    turned = _ask(COUNTS[::-1], metric=own, reading="turned")
    assert _refusal(book, turned, allowed) is FaultCode.OTHER_CLASSES
    with pytest.raises(InvalidConfiguration, match="no bound is known"):
        sensitivity(own, "uniform", 4, 10)


def test_targets_that_the_site_does_not_name_are_refused(book: Disclosures) -> None:
    uniform, explicit = replace(NOISED, targets=("uniform",)), replace(NOISED, targets=("explicit",))
    assert _refusal(book, _ask(target=(4, 3, 2, 1)), uniform) is FaultCode.TARGET_NOT_ALLOWED
    assert _refusal(book, _ask(), explicit) is FaultCode.TARGET_NOT_ALLOWED
    assert _refusal(book, _ask(), uniform) is None
    assert _refusal(book, _ask(target=(4, 3, 2, 1)), explicit) is None


def test_noise_cannot_hide_an_infinite_discrepancy(book: Disclosures) -> None:
    assert _refusal(book, _ask(target=(1, 1, 1, 0))) is FaultCode.EMPTY_CLASS
    assert book.answer(_ask(target=(1, 1, 1, 0)), EXACT).value == math.inf


@pytest.mark.parametrize("rule", [NOISED, EXACT, replace(EXACT, metrics=EVERY)])
def test_one_run_a_class_does_not_give_the_counts(book: Disclosures, rule: Rule) -> None:
    """By l1 to one class, p_i = 1 - d_i / 2: at most one such question is answered, by default none."""
    answered = []
    for place in range(4):
        target = tuple(float(each == place) for each in range(4))
        question = _ask(metric="l1", target=target, reading=f"run {place}")
        if _refusal(book, question, rule) is None:
            answered.append(place)
    assert answered == ([0] if rule.metrics == EVERY else [])


def test_a_second_target_is_refused_by_any_metric_and_grade(book: Disclosures) -> None:
    every = replace(NOISED, metrics=EVERY)
    assert _refusal(book, _ask(target=(4, 3, 2, 1)), every) is None
    assert _refusal(book, _ask(target=(0.4, 0.3, 0.2, 0.1)), every) is None  # the same
    assert _refusal(book, _ask(target=(1, 2, 3, 3), metric="l2"), every) is FaultCode.OTHER_TARGET
    assert _refusal(book, _ask(target=(1, 2, 3, 3)), EXACT) is FaultCode.OTHER_TARGET
    assert _refusal(book, _ask(), every) is None


FIRST, SECOND = (4, 3, 2, 1), (1, 2, 3, 3)


@pytest.mark.parametrize("rule", [NOISED, EXACT], ids=["noised", "exact"])
def test_a_second_target_is_refused_of_touched_files(book: Disclosures, rule: Rule) -> None:
    """And of files that lie elsewhere, or that the site reads with other options: the labels are the same."""
    book.answer(_ask(target=FIRST), rule)
    assert _refusal(book, _ask(target=SECOND, data="touched"), rule) is FaultCode.OTHER_TARGET
    turned = _ask(COUNTS[::-1], classes="dcba", target=SECOND, data="touched", reading="turned")
    assert _refusal(book, turned, rule) is FaultCode.OTHER_TARGET
    assert _refusal(book, _ask((50, 50, 60, 70), target=SECOND, data="more scans"), rule) is None


def test_touched_files_are_known_also_where_other_labels_are_made_of_them(book: Disclosures) -> None:
    """By their names and sizes, or by the inputs; once met, also by the fingerprint that they have now."""
    book.answer(_ask((200, 60), reading="edge 1", contents=("files", "inputs")), NOISED)
    moved = {"counts": (150, 110), "reading": "edge 2"}
    for place, mark in enumerate(("files", "inputs")):
        touched = _ask(**moved, data=f"touched {place}", contents=(mark, f"other {place}"))  # type: ignore[arg-type]
        assert _refusal(book, touched) is FaultCode.OTHER_CLASSES
        again = _ask((100, 160), reading="edge 3", data=f"touched {place}")
        assert _refusal(book, again) is FaultCode.OTHER_CLASSES
        later = _ask((90, 170), reading="edge 4", data="touched again", contents=(f"other {place}",))
        assert _refusal(book, later) is FaultCode.OTHER_CLASSES


def test_labels_that_were_corrected_in_their_place_are_answered_anew(book: Disclosures) -> None:
    """No file has another name or size, but the run's reading of them gives other counts."""
    book.answer(_ask(contents=("files", "inputs")), EXACT)
    answer = book.answer(_ask((50, 50, 80, 80), data="corrected", contents=("files", "inputs")), EXACT)
    assert answer.value == discrepancy((50, 50, 80, 80), "uniform", "kl")


@pytest.mark.parametrize("is_asked_the_same", [True, False])
def test_answers_of_an_earlier_version_hold_of_files_that_are_touched_later(
    tmp_path: Path, is_asked_the_same: bool
) -> None:
    """It kept the fingerprint alone; the rest is learned at the next question, answered or not."""
    book, path = Disclosures(tmp_path), tmp_path / "disclosures.json"
    answer = book.answer(_ask(target=FIRST), NOISED)
    kept = json.loads(path.read_text())
    for each in kept["answers"]:
        del each["marks"]
    path.write_text(json.dumps(kept))
    if is_asked_the_same:
        assert book.answer(_ask(target=FIRST), NOISED).value == answer.value
    else:
        assert _refusal(book, _ask(target=SECOND)) is FaultCode.OTHER_TARGET
    assert _refusal(book, _ask(target=SECOND, data="touched")) is FaultCode.OTHER_TARGET


TURNED: tuple[tuple[float, ...], ...] = ((0.7, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.7))


@pytest.mark.parametrize("rule", [NOISED, EXACT], ids=["noised", "exact"])
@pytest.mark.parametrize("counts", [(1000, 10, 10, 10), (10, 10, 10, 10)], ids=["unequal", "equal"])
def test_the_same_shares_for_other_classes_are_another_target(
    book: Disclosures, rule: Rule, counts: tuple[int, ...]
) -> None:
    """Whatever the counts: an answer only where they are equal would tell that they are."""
    first, second = TURNED
    answer = book.answer(_ask(counts, target=first), rule)
    assert book.answer(_ask(counts, target=first), rule) == answer
    for other in (NOISED, EXACT, replace(rule, metrics=EVERY)):
        assert _refusal(book, _ask(counts, target=second), other) is FaultCode.OTHER_TARGET
    turned = _ask(counts[::-1], classes="dcba", target=second, reading="as they are")
    assert book.answer(turned, rule).value == answer.value
    drawn = _ask((counts[0] - 1, *counts[1:]), target=first)  # by the run's seed
    assert book.answer(drawn, rule).value == answer.value


@pytest.mark.parametrize("rule", [NOISED, EXACT], ids=["noised", "exact"])
def test_an_answer_of_an_earlier_version_is_given_to_the_same_labels_only(tmp_path: Path, rule: Rule) -> None:
    """It did not keep which class had which share of the target."""
    book, path = Disclosures(tmp_path), tmp_path / "disclosures.json"
    counts, (first, second) = (1000, 10, 10, 10), TURNED
    answer = book.answer(_ask(counts, target=first), rule)
    uniform = book.answer(_ask(counts), rule)
    kept = json.loads(path.read_text())
    for each in kept["answers"]:
        del each["by_class"]
    path.write_text(json.dumps(kept))
    assert book.answer(_ask(counts, target=first), rule).value == answer.value
    assert _refusal(book, _ask(counts, target=second), rule) is FaultCode.OTHER_TARGET
    assert _refusal(book, _ask((999, 10, 10, 10), target=first), rule) is FaultCode.OTHER_TARGET
    assert book.answer(_ask((999, 10, 10, 10)), rule).value == uniform.value


def test_data_that_the_run_dealt_are_told_exactly_whatever_is_asked(tmp_path: Path) -> None:
    """Demos and the paper's tables keep their bits; nothing is kept of them."""
    book, rule = Disclosures(tmp_path), Rule("exact", dealt=True)
    targets: list[Target] = ["uniform", (1, 0, 0, 0), (0, 1, 0, 0)]
    for metric in EVERY:
        for target in targets:
            answer = book.answer(_ask(metric=metric, target=target), rule)
            assert answer.value == discrepancy(COUNTS, target, metric)
    assert not (tmp_path / "disclosures.json").exists()


# ---------------------------------------------------------------- the noise


@example([1, 0], "kl")  # no label can move it: the finest grid
@given(st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any), st.sampled_from(EVERY))
def test_an_answer_is_in_the_range_of_its_metric(counts: list[int], metric: Metric) -> None:
    from shared.discrepancy import largest
    from worker.disclosure import _make_answer

    answer = _make_answer(_ask(counts, metric=metric), "noised", 0.01)
    assert 0 <= answer.value <= largest(metric, "uniform", len(counts))


# ---------------------------------------------------------------- the attack


def _attack(told: float, examples: int, classes: int, width: float) -> list[tuple[int, ...]]:
    """All multisets of counts that fit what was told: what anybody can compute who reads n and d."""
    rows = partitions(examples, classes, ordered=False, limit=10**6)
    assert rows is not None
    p = rows / examples
    with np.errstate(divide="ignore", invalid="ignore"):
        d = math.log(classes) + np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
    return [tuple(map(int, row)) for row in rows[np.abs(d - told) <= width]]


def test_the_attack_finds_the_counts_of_an_exact_answer(book: Disclosures) -> None:
    told = book.answer(_ask(), EXACT).value
    assert told == 0.16601219484765328
    assert _attack(told, 260, 4, 1e-13) == [(20, 40, 100, 100)]


def test_the_attack_finds_thousands_by_default(book: Disclosures) -> None:
    told = book.answer(_ask(), NOISED)
    noise = make_noise(sensitivity("kl", "uniform", 4, 260), 1.0)
    assert told.half_width == noise.half_width
    assert len(_attack(told.value, 260, 4, noise.half_width)) > 1000


# ---------------------------------------------------------------- what the site's log says


def test_the_log_says_how_many_counts_fit(book: Disclosures) -> None:
    exact, noised = book.answer(_ask(), EXACT), book.answer(_ask(), NOISED)
    assert describe_answer(exact, _ask()) == "told d = 0.166, exact; 1 label count fits"
    number = len(_attack(noised.value, 260, 4, noised.half_width))
    words = describe_answer(noised, _ask())
    assert words == f"told d = {noised.value:.4g}, noised with epsilon 1; {number:,} label counts fit"


def test_a_large_site_is_told_a_lower_bound(book: Disclosures) -> None:
    counts = (500,) * 10
    answer = book.answer(_ask(counts), NOISED)
    fits = count_fits(counts, "uniform", "kl", discrepancy(counts, "uniform", "kl"), answer.half_width)
    assert not fits.all
    assert fits.number > 100
    assert "; at least " in describe_answer(answer, _ask(counts))


@pytest.mark.parametrize("metric", EVERY)
def test_the_fast_count_is_that_of_the_discrepancy_itself(metric: Metric) -> None:
    counts, target = (5, 3, 4), (0.5, 0.3, 0.2)
    told = discrepancy(counts, target, metric)
    rows = partitions(12, 3, ordered=True)
    assert rows is not None
    for width in (0.0, 0.05):
        expected = sum(abs(discrepancy(row, target, metric) - told) <= width for row in rows)
        assert count_fits(counts, target, metric, told, width).number == expected


@pytest.mark.parametrize("metric", EVERY)
def test_classes_that_are_not_moved_count_as_well(metric: Metric) -> None:
    counts, target = np.array([5, 3, 4, 0, 9]), np.array([0.3, 0.2, 0.1, 0.15, 0.25])
    moved = _Moved(counts, [0, 1], target)
    rows = partitions(8, 2, ordered=True)
    assert rows is not None
    exact = [discrepancy([*row, 4, 0, 9], list(target), metric) for row in rows]
    assert moved.measure(rows, metric) == pytest.approx(exact)
    assert moved.complete(rows[2]).tolist() == [*rows[2], 4, 0, 9]


@pytest.mark.parametrize("width", [0.0, 0.05])
def test_a_thousand_classes_take_little_memory(width: float) -> None:
    counts = [int(count) for count in np.random.default_rng(0).integers(0, 20, 1000)]
    told = discrepancy(counts, "uniform", "kl")
    tracemalloc.start()
    try:
        fits = count_fits(counts, "uniform", "kl", told, width)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fits.number > (1000 if width else 0)
    assert peak < 100 * 2**20


@pytest.mark.parametrize(
    ("examples", "told"),
    [(0, 0), (7, 7), (99, 99), (104, 100), (105, 110), (4_149, 4_100), (99_500, 100_000)],
)
def test_sizes_are_told_to_two_digits(examples: int, told: int) -> None:
    assert told_size(examples, "rounded") == told
    assert told_size(examples, "exact") == examples
