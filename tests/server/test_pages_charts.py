"""Where things are drawn and how numbers are written: the pages' arithmetic, compared as numbers."""

from __future__ import annotations

import datetime as dt
import math
import re
from enum import StrEnum
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pages import STATIC
from server.pages.charts import MARKED, Scale, bar, line_chart, nice_ticks, whole_ticks
from server.pages.explain import fallback, formula, sentence
from server.pages.losses import TrainingLosses, training_loss
from server.pages.words import (
    amount,
    detail,
    distance,
    duration,
    indexed,
    number,
    percent,
    size,
    tone,
)
from server.pages.words import sentence as written
from shared.config import DiscoWeighting, SizesWeighting, UniformWeighting, Weighting
from shared.schemas import EnrolmentStatus, LedgerRow, ParticipantStatus, RoundStatus, RoundView, RunStatus
from shared.weighting import Contribution, ledger

# ---------------------------------------------------------------- charts


def test_a_points_position() -> None:
    """Levels are 0.0 to 1.0, rounds 0 to 10: 0.75 at round 4 is 40 % from the left, 25 % from the top."""
    chart = line_chart("c", "C", {"a": [(0, 0.05), (4, 0.75), (10, 1.0)]}, write=percent, tick=percent)
    assert chart is not None
    mark = chart.curves[0].marks[1]
    assert (mark.x, mark.y) == (40.0, 25.0)
    assert mark.label == "a, round 4: 75.0\u202f%"
    assert chart.curves[0].path == "0,95 40,25 100,0"
    assert (chart.y_ticks[0].at, chart.y_ticks[0].label) == (100.0, "0.0\u202f%")
    assert [tick.label for tick in chart.x_ticks] == ["0", "2", "4", "6", "8", "10"]


def test_an_unfinished_run_leaves_room_for_what_is_to_come() -> None:
    chart = line_chart("c", "C", {"a": [(0, 1.0), (5, 2.0)]}, write=number, tick=number, last_round=20)
    assert chart is not None
    assert chart.curves[0].marks[-1].x == 25.0
    assert chart.x_ticks[-1].label == "20"


def test_a_chart_describes_itself() -> None:
    chart = line_chart(
        "c", "C", {"a": [(3, 2.0), (1, 1.0)], "b": [(2, 5.0)], "empty": []}, write=number, tick=number
    )
    assert chart is not None
    assert (
        chart.description
        == "a: 1.0000 at round 1, 2.0000 at round 3. b: 5.0000 at round 2, 5.0000 at round 2."
    )
    assert [(curve.name, curve.style) for curve in chart.curves] == [("a", 0), ("b", 1)]


def test_nothing_to_draw_is_no_chart_and_one_point_is_one() -> None:
    assert line_chart("c", "C", {"a": []}, write=number, tick=number) is None
    chart = line_chart("c", "C", {"a": [(1, 0.0)]}, write=number, tick=number)
    assert chart is not None
    assert (chart.curves[0].marks[0].x, chart.curves[0].marks[0].y) == (50.0, 100.0)


def test_a_long_curve_marks_its_end_only() -> None:
    long = [(round, 0.5) for round in range(MARKED + 1)]
    chart = line_chart("c", "C", {"a": long}, write=number, tick=number)
    assert chart is not None
    assert [mark.x for mark in chart.curves[0].marks] == [100.0]
    assert chart.curves[0].path.count(",") == MARKED + 1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.12, 0.93, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.91, 0.935, (0.91, 0.915, 0.92, 0.925, 0.93, 0.935)),
        (0.0, 2.3, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)),
        (5.0, 5.0, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)),
        (1.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (-2.0, -2.0, (-2.0, -1.5, -1.0, -0.5, 0.0)),
        (0.0, 0.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.0, 1234.0, (0.0, 500.0, 1000.0, 1500.0)),
    ],
)
def test_nice_ticks(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert nice_ticks(low, high) == ticks


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_nice_ticks_enclose_the_data_and_are_few(low: float, extent: float) -> None:
    high = low + max(extent, 1e-8 * abs(low))  # below that it is one level to a reader
    ticks = nice_ticks(low, high)
    room = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + room
    assert ticks[-1] >= high - room
    assert 2 <= len(ticks) <= 6
    assert list(ticks) == sorted(set(ticks))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_whole_ticks_are_rounds_of_the_run(low: int, extent: int) -> None:
    ticks = whole_ticks(low, low + extent)
    assert 1 <= len(ticks) <= 7 or extent == 0
    assert all(low <= tick <= low + extent for tick in ticks)
    assert len({b - a for a, b in pairwise(ticks)}) <= 1


def test_scale_and_bar() -> None:
    assert Scale(2, 6)(3) == 25.0
    assert Scale(2, 6).down(3) == 75.0
    assert Scale(2, 2)(2) == 50.0
    assert bar(0.3, 0.4) == 75.0
    assert bar(None, 0.4) == bar(-1.0, 0.4) == bar(0.3, 0.0) == bar(math.nan, 1.0) == 0.0
    assert bar(math.inf, 2.0) == 100.0


# ---------------------------------------------------------------- words


def test_numbers() -> None:
    assert number(1 / 6) == "0.1667"
    assert number(-0.00001) == "0.0000", "no minus zero"
    assert number(-0.0258, sign=True) == "\u22120.0258"
    assert number(0.5, 1, sign=True) == "+0.5"
    assert (number(None), number(math.nan), number(math.inf), number(-math.inf)) == ("–", "–", "∞", "\u2212∞")
    assert percent(0.91349) == "91.3\u202f%"
    assert percent(None) == "–"
    assert amount(62006) == "62\u202f006"
    assert amount(None) == "–"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (248_760, "249 kB"),
        (44_700_000, "44.7 MB"),
        (999_600, "1.0 MB"),
        (2**40, "1.1 TB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert size(count) == text.replace(" ", "\u202f")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.424, "0.42 s"),
        (9.999, "10.0 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (7380, "2 h 03 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds).replace("\u202f", " ") == text


def test_distances_in_time() -> None:
    now = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    assert distance(now + dt.timedelta(seconds=245), now).replace("\u202f", " ") == "in 4 min 05 s"
    assert distance(now - dt.timedelta(seconds=3), now) == "3\u202fs ago"
    assert distance(now, now) == "0\u202fs ago"
    assert distance(None, now) == "never"


def test_what_an_event_carries_is_one_line() -> None:
    carried = {
        "participants": ["a", "b"],
        "deadline_at": "2026-11-28T12:30:05.123456+00:00",
        "model": "ab" * 32,
        "value": 0.123456789,
        "none": None,
    }
    assert detail(carried) == (
        "participants: a, b · deadline at: 2026-11-28 12:30:05 UTC · model: abababababab · "
        "value: 0.123457 · none: –"
    )


def test_sentences_and_subscripts() -> None:
    assert written("round 3: waiting") == "Round 3: waiting."
    assert written("Done.") == "Done."
    assert written("  ") == ""
    assert str(indexed("pₖ < <b>")) == "p<sub>k</sub> &lt; &lt;b&gt;"


@pytest.mark.parametrize("kind", [RunStatus, RoundStatus, ParticipantStatus, EnrolmentStatus])
def test_every_state_has_a_shape(kind: type[StrEnum]) -> None:
    assert {tone(status.value) for status in kind} <= {"wait", "go", "done", "hold", "end", "bad"}


# ---------------------------------------------------------------- the weights, explained


def rows(weighting: Weighting, examples: list[int], discrepancies: list[float]) -> list[LedgerRow]:
    """A round's ledger as the coordinator computes and stores it."""
    everyone = [
        Contribution(index, n, d) for index, (n, d) in enumerate(zip(examples, discrepancies, strict=True))
    ]
    return [
        LedgerRow(client=f"c{entry.index}", status=ParticipantStatus.AGGREGATED, **vars(entry))
        for entry in ledger(weighting, everyone, everyone)
    ]


def test_a_disco_weight_in_words() -> None:
    """n = (1/6, 5/6), d = (0.2, 0.8) of their sum: 1/6 - 0.1 + 0.1 = 1/6; 5/6 - 0.4 + 0.1 = 8/15; sum 0.7."""
    made = rows(DiscoWeighting(a=0.5, b=0.1), [100, 500], [0.1, 0.4])
    assert sentence(made[0], made, DiscoWeighting(a=0.5, b=0.1)).replace("\u202f", " ") == (
        "0.1667 − 0.5 × 0.2000 + 0.1 = 0.1667, divided by the sum of scores 0.7000 gives 23.81 %."
    )


def test_a_score_below_zero_an_infinite_discrepancy_and_the_fallback() -> None:
    """The infinite one stays out of the sum: d = 0.9 of 1.0 in all; 20/620 - 0.45 + 0.1 = -0.3177."""
    weighting = DiscoWeighting(a=0.5, b=0.1)
    made = rows(weighting, [500, 20, 100], [0.1, 0.9, math.inf])
    assert "= −0.3177, not above zero, so it counts as 0" in sentence(made[1], made, weighting).replace(
        "\u2212", "−"
    )
    assert sentence(made[2], made, weighting).endswith("its discrepancy is infinite, its weight 0.")
    harsh = DiscoWeighting(a=9, b=0.0)
    none = rows(harsh, [10, 30], [0.5, 0.5])
    assert fallback(none, harsh) == "No score of this round is above zero; the run falls back to sizes."
    assert sentence(none[1], none, harsh).replace("\u202f", " ").endswith("the fallback gives 75.00 %.")
    assert fallback(made, weighting) is None


def test_other_weightings_in_words() -> None:
    made = rows(SizesWeighting(), [600, 2400], [0.1, 0.1])
    text = sentence(made[0], made, SizesWeighting()).replace("\u202f", " ")
    assert text == "600 of 3 000 examples give 20.00 %."
    made = rows(UniformWeighting(), [600, 2400], [0.1, 0.1])
    assert (
        sentence(made[0], made, UniformWeighting()).replace("\u202f", " ")
        == "One of 2 clients gives 50.00 %."
    )


def test_a_client_without_examples_is_out_with_its_reason() -> None:
    made = rows(SizesWeighting(), [600, 0], [0.1, 0.1])
    assert sentence(made[1], made, SizesWeighting()) == "Not in the model: no examples."


def test_the_formula_has_the_rounds_own_constants() -> None:
    assert formula(DiscoWeighting(a=0.4, b=-0.2)) == "pₖ = max(nₖ − 0.4 × dₖ − 0.2, 0) ÷ sum over the round"


# ---------------------------------------------------------------- colours


def palette(scheme: str) -> dict[str, str]:
    """The named colours of the style sheet; the dark ones stand in the media query."""
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)[:2]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if scheme == "light" else dark))


def contrast(one: str, other: str) -> float:
    """Ratio of relative luminances (WCAG 2.2), 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_four_and_a_half_to_one_and_drawings_three(scheme: str) -> None:
    colours = palette(scheme)
    words = ("ink", "quiet", "accent", "wait", "go", "done", "hold", "end", "bad")
    lines = ("accent", "second", "third", "fourth", "hollow")
    for ground in ("paper", "sheet"):
        for name in words:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for name in lines:
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)
    assert contrast(colours["accent"], colours["room"]) >= 3, "a bar in its room"
    assert contrast(colours["ink"], colours["tint"]) >= 3, "the mark across a small bar"


def test_light_and_dark_name_the_same_colours() -> None:
    assert palette("light").keys() == palette("dark").keys()


# ---------------------------------------------------------------- training loss


def round_with(
    number: int, pairs: list[tuple[float | None, float | None]], status: str = "completed"
) -> RoundView:
    """A round whose clients have these (weight, loss)."""
    made = [
        LedgerRow(
            client=f"c{index}",
            index=index,
            status=ParticipantStatus.AGGREGATED,
            included=True,
            reason=None,
            examples=1,
            weight=weight,
            loss=loss,
        )
        for index, (weight, loss) in enumerate(pairs)
    ]
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return RoundView(
        run="r",
        round=number,
        attempt=1,
        status=RoundStatus(status),
        reason=None,
        opened_at=now,
        deadline_at=now,
        closed_at=now,
        completed_at=now,
        ledger=tuple(made),
        evaluations=(),
    )


def test_training_loss_is_weighted_as_the_model_is() -> None:
    """(0.25 x 2 + 0.5 x 1) / 0.75 = 4/3: who reported no loss does not count, who has no weight neither."""
    assert training_loss(
        round_with(1, [(0.25, 2.0), (0.5, 1.0), (0.25, None), (0.0, 99.0)])
    ) == pytest.approx(4 / 3)
    assert training_loss(round_with(1, [(None, 2.0), (0.0, 1.0)])) is None
    assert training_loss(round_with(1, [(1.0, math.inf)])) is None


def test_losses_are_learnt_once() -> None:
    losses = TrainingLosses()
    assert losses.first_unknown("r") == 1
    assert losses.learn("r", [round_with(2, [(1.0, None)]), round_with(1, [(1.0, 3.0)])]) == {1: 3.0}
    assert losses.first_unknown("r") == 3, "a round without a loss is known too"
    abandoned = round_with(3, [(1.0, 9.0)], "abandoned")
    assert losses.learn("r", [abandoned]) == {1: 3.0}
    assert losses.first_unknown("r") == 3
    assert losses.learn("r", [round_with(3, [(1.0, 1.0)])]) == {1: 3.0, 3: 1.0}
    losses.learn("r", [round_with(5, [(1.0, 1.0)])])
    assert losses.first_unknown("r") == 4, "what is missing is read, whatever is known after it"
