"""Where things are drawn, compared as numbers: positions, ticks, and the loss that a chart shows."""

from __future__ import annotations

import datetime as dt
import json
import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.pages.charts import LARGEST, MARKED, Scale, bar, line_chart, nice_ticks, whole_ticks
from server.pages.losses import TrainingLosses, training_loss
from server.pages.words import (
    number,
    percent,
)
from shared.schemas import LedgerRow, ParticipantStatus, RoundStatus, RoundView

drawable = st.floats(-LARGEST, LARGEST)

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
    assert (chart.curves[0].marks[0].x, chart.curves[0].marks[0].y) == (100.0, 100.0), (
        "the axis begins at round 0"
    )


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


@given(drawable, drawable)
@example(0.0, 5e-324)
@example(-5e-324, 5e-324)
@example(-LARGEST, LARGEST)
@example(1e-300, 1.5e-300)
def test_nice_ticks_enclose_the_data_and_are_few(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high)
    room = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + room
    assert ticks[-1] >= high - room
    assert 2 <= len(ticks) <= 6
    assert list(ticks) == sorted(set(ticks))


@given(st.lists(st.floats(), max_size=5), st.booleans())
@example([1e308, -1e308], False)
@example([0.3, 1.7e308], True)
@example([0.0, 5e-324], False)
def test_every_number_is_drawn_or_left_out(values: list[float], from_zero: bool) -> None:
    chart = line_chart(
        "c", "C", {"a": list(enumerate(values))}, write=number, tick=number, from_zero=from_zero
    )
    drawn = [value for value in values if abs(value) <= LARGEST]
    if chart is None:
        assert drawn == []
        return
    (curve,) = chart.curves
    assert [reading[4] for reading in json.loads(curve.readings)] == drawn
    places = [mark.y for mark in curve.marks] + [tick.at for tick in chart.y_ticks]
    assert all(-0.01 <= place <= 100.01 for place in places), places
    assert all(math.isfinite(tick.at) for tick in chart.x_ticks)


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


# ---------------------------------------------------------------- training loss


def round_with(
    number: int, pairs: list[tuple[float | None, float | None]], status: str = "completed", attempt: int = 1
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
        attempt=attempt,
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
    stored = [
        round_with(2, [(1.0, None)]),
        round_with(1, [(1.0, 3.0)]),
        round_with(3, [(1.0, 9.0)], "abandoned"),
    ]
    losses, asked = TrainingLosses(), []

    def read(since: int, until: int) -> list[RoundView]:
        asked.append((since, until))
        return stored

    assert losses.find("r", {}, read) == {}
    assert losses.find("r", {1: 1, 2: 1}, read) == {1: 3.0}
    assert losses.find("r", {1: 1, 2: 1}, read) == {1: 3.0}
    assert asked == [(1, 2)], "a round without a loss is known too"
    stored = [round_with(3, [(1.0, 1.0)], attempt=2)]
    assert losses.find("r", {1: 1, 2: 1, 3: 2}, read) == {1: 3.0, 3: 1.0}
    assert losses.find("r", {1: 1}, read) == {1: 3.0}, "the run went back, twice"
    stored = [round_with(2, [(1.0, 2.0)], attempt=3)]
    assert losses.find("r", {1: 1, 2: 3}, read) == {1: 3.0, 2: 2.0}
    assert asked == [(1, 2), (3, 3), (2, 2)]
