"""A run is changed where that touches no past round."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from server.lifecycle.events import AggregationFinished, ChangeRequested, UpdateReceived
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Run
from shared.problems import IllegalTransition
from shared.schemas import RunStatus
from tests.helpers.lifecycle_story import (
    HOUR,
    NOW,
    after_deadline,
    aggregating,
    attempt_of,
    collecting,
    completed,
    current_round,
    enrolled,
    kinds,
    paused,
    play,
    record,
    stopped,
    uploaded,
)


def change(run: Run, now: dt.datetime = NOW, **policy: Any) -> Decision:
    told = tuple((name, None, 1.0) for name in policy)
    return decide(run, ChangeRequested(replace(run.policy, **policy), told), now)


def test_more_rounds_are_played() -> None:
    run = change(collecting("ab", rounds=1), rounds=3).run
    assert completed(run).completed_rounds == 3


def test_the_round_that_has_begun_is_the_least_there_can_be() -> None:
    run = play(aggregating("a", rounds=5), AggregationFinished(1, 1)).run
    with pytest.raises(IllegalTransition, match="round 2 of run 'r' has begun, so there cannot be 1 in all"):
        change(run, rounds=1)
    run = change(run, rounds=2).run
    decision = play(run, UpdateReceived("a", 2, 1), AggregationFinished(2, 1))
    assert (decision.run.status, decision.run.completed_rounds) == (RunStatus.COMPLETED, 2)


@pytest.mark.parametrize("stands", ["waiting", "paused"])
def test_lowered_to_its_completed_rounds_a_run_between_rounds_ends(stands: str) -> None:
    run = play(aggregating("ab", quorum=2, rounds=5), AggregationFinished(1, 1)).run
    run = after_deadline(run).run  # round 2 found nobody, and the next attempt waits
    run = paused(run) if stands == "paused" else run
    assert run.status == stands
    decision = change(run, rounds=1)
    assert (decision.run.status, kinds(decision)) == (RunStatus.COMPLETED, ["run_changed", "run_completed"])


def test_a_lower_quorum_opens_the_round_that_waits_for_clients() -> None:
    run = after_deadline(play(collecting("ab", quorum=2), uploaded("a")).run).run
    assert attempt_of(run) == (1, 1, "abandoned")
    decision = change(run, quorum=1)
    assert kinds(decision) == ["run_changed", "round_opened"]
    assert [p.client for p in current_round(decision.run).participants] == ["a"]


def test_the_open_round_goes_by_the_new_quorum() -> None:
    run = change(play(collecting("abc", quorum=3), uploaded("a")).run, quorum=1).run
    assert after_deadline(run).run.round.status == "aggregating"  # type: ignore[union-attr]


def test_the_open_deadline_moves_by_the_difference() -> None:
    run = collecting("ab")
    before = current_round(run).deadline_at
    decision = change(run, deadline=3 * HOUR)
    assert current_round(decision.run).deadline_at == before + 2 * HOUR
    assert record(decision, "run_changed").detail["deadline_at"] == (before + 2 * HOUR).isoformat()


def test_a_shorter_deadline_leaves_a_minute_and_never_lengthens_one() -> None:
    run, late = collecting("ab"), NOW + dt.timedelta(minutes=30)
    decision = change(run, late, deadline=dt.timedelta(minutes=10))
    assert current_round(decision.run).deadline_at == late + dt.timedelta(minutes=1)
    last = NOW + HOUR - dt.timedelta(seconds=10)
    decision = change(run, last, deadline=dt.timedelta(minutes=10))
    assert current_round(decision.run).deadline_at == NOW + HOUR


def test_a_round_that_aggregates_has_no_deadline_to_move() -> None:
    run = aggregating("ab")
    decision = change(run, deadline=3 * HOUR)
    assert current_round(decision.run) == current_round(run)
    assert "deadline_at" not in record(decision, "run_changed").detail


def test_an_enrolling_run_is_changed_and_goes_on_enrolling() -> None:
    decision = change(enrolled("ab"), rounds=9, quorum=2)
    assert (decision.run.status, decision.run.policy.rounds) == (RunStatus.ENROLLING, 9)
    assert kinds(decision) == ["run_changed"]
    assert record(decision, "run_changed").detail["changes"] == {"rounds": [None, 1.0], "quorum": [None, 1.0]}


@pytest.mark.parametrize("ended", [completed(collecting("a")), stopped(collecting("a"))])
def test_of_an_ended_run_only_what_it_keeps_is_changed(ended: Run) -> None:
    with pytest.raises(IllegalTransition, match="only what it keeps and its tags can be changed"):
        change(ended, rounds=50)
    decision = decide(ended, ChangeRequested(ended.policy, (("keep_updates", None, 0),)), NOW)
    assert (decision.run, kinds(decision)) == (ended, ["run_changed"])


def test_a_longer_limit_moves_the_end_of_a_wait_by_the_difference() -> None:
    run = after_deadline(collecting("ab", quorum=2)).run
    assert run.wait is not None
    longer = change(run, waiting_deadline=run.policy.waiting_deadline + HOUR).run
    assert longer.wait == replace(run.wait, until=run.wait.until + HOUR)
    now = NOW + 2 * HOUR
    shorter = change(run, now, waiting_deadline=HOUR / 2).run
    assert shorter.wait == replace(run.wait, until=now), "not before it is asked for"
