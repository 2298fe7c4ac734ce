"""What the worker tells: lines with a time, a sentence once a change, a bar only on a terminal."""

from __future__ import annotations

import datetime as dt
import io

from shared.training import TrainProgress
from worker.progress import Reporter

NOON = dt.datetime(2026, 11, 28, 13, 0, tzinfo=dt.timezone(dt.timedelta(hours=1)))
STEP = TrainProgress(epoch=1, epochs=2, step=3, steps=8, loss=0.25)


def _reporter(*, terminal: bool | None = None) -> tuple[Reporter, io.StringIO]:
    stream = io.StringIO()
    return Reporter(stream, lambda: NOON, terminal=terminal), stream


def test_a_line_has_its_time_in_utc() -> None:
    reporter, stream = _reporter()
    reporter.say("enrolled")
    assert stream.getvalue() == "2026-11-28 12:00:00Z  enrolled\n"


def test_what_is_waited_for_is_said_once_a_change() -> None:
    reporter, stream = _reporter()
    for text in ("for a", "for a", "", "for b", "for a", "for a"):
        reporter.say_waiting(text)
    assert [line[22:] for line in stream.getvalue().splitlines()] == ["for a", "for b", "for a"]


def test_after_something_happened_it_is_said_again() -> None:
    reporter, stream = _reporter()
    reporter.say_waiting("for a")
    reporter.say("round 1")
    reporter.say_waiting("for a")
    assert stream.getvalue().count("for a") == 2


def test_no_bar_where_there_is_no_terminal() -> None:
    reporter, stream = _reporter()
    with reporter.show_training("demo round 1") as show:
        show(STEP)
    assert stream.getvalue() == ""


def test_a_bar_with_step_and_loss_on_a_terminal() -> None:
    reporter, stream = _reporter(terminal=True)
    with reporter.show_training("demo round 1") as show:
        show(STEP)
    assert "demo round 1" in stream.getvalue()
    assert "step 3/8" in stream.getvalue()
    assert "0.2500" in stream.getvalue()
